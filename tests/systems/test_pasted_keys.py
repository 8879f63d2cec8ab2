"""Pasted mappings: for an old key the error names its successor, and the parents of a file's keys may be there."""

from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.areal import from_areal
from rlcorr.systems.ms_swift import from_ms_swift
from rlcorr.systems.nemo_rl import from_nemo_rl
from rlcorr.systems.open_instruct import from_open_instruct
from rlcorr.systems.openrlhf import from_openrlhf
from rlcorr.systems.prime_rl import from_prime_rl
from rlcorr.systems.roll import from_roll
from rlcorr.systems.skyrl import from_skyrl, skyrl_text
from rlcorr.systems.skyrl_support import support_replay
from rlcorr.systems.slime import from_slime
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl.config import from_verl
from rlcorr.systems.xtuner import from_xtuner

_IS = "vllm_importance_sampling"
# Reader, pasted mapping, and a part of the message about the successor. Source: pull requests and changelogs.
RETIRED: list[tuple[Any, dict[str, Any], str]] = [
    (from_verl, {"rollout_is_level": "token", "rollout_is": True}, "now write rollout_is: token, or sequence"),
    (from_verl, {"algorithm": {"rollout_is": True, "rollout_is_mode": "mask"}}, "mask, now rollout_rs"),
    (from_verl, {"rollout_is": "token", "rollout_is_threshold_lower": 0.5}, 'rollout_is_threshold: "0.5_5.0"'),
    (from_verl, {"rollout_is_veto_threshold": 1e-4}, "today's has no veto, nearest: rollout_rs: seq_max_k2"),
    (from_verl, {"rollout_token_veto_threshold": 1e-4}, "today's has no veto, nearest: rollout_rs: seq_max_k2"),
    (from_verl, {"rollout_rs": "geometric", "rollout_rs_threshold_lower": 0.9}, 'rollout_rs_threshold: "0.5_2.0"'),
    (from_verl, {"actor_rollout_ref.actor.tis_imp_ratio_cap": 2.0}, "rollout_is: token with rollout_is_threshold: cap"),
    (from_verl, {"behav_imp_weight_cap": 2.0}, "rollout_is: token with rollout_is_threshold: cap"),
    (from_verl, {"bypass_old_logprob_for_rollout": True}, "it is now bypass_mode."),
    (from_verl, {"use_pure_rollout_correction": True}, "bypass_mode: true with loss_type: reinforce"),
    (from_verl, {"use_policy_gradient": True}, "bypass_mode: true with loss_type: reinforce"),
    (from_verl, {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5, 2.0"}, 'rollout_rs_threshold: "0.5_2.0"'),
    (from_verl, {"rollout_rs": "token_k1", "rollout_rs_threshold": [0.5, 2.0]}, 'for a pair: "0.5_2.0"'),
    (from_verl, {"rollout_is": "token", "rollout_is_threshold": "0.5,5.0"}, "as in \"0.5_2.0\"; got '0.5,5.0'"),
    (from_verl, {"rollout_is": "token", "rollout_is_threshold": (0.5, 5.0)}, 'for a pair: "0.5_2.0"'),
    (from_areal, {"actor": {"use_decoupled_loss": True, "behave_imp_weight_cap": 5.0}}, "rejection_sampling: {level"),
    (from_areal, {"behav_imp_weight_cap": 5.0}, "rejection_sampling: {level: token, action: mask, metric: ratio"),
    (from_areal, {"behave_imp_weight_mode": "token_truncate"}, "*_truncate is action: clamp"),
    (from_open_instruct, {"--truncated_importance_sampling_ratio_cap": 2.0}, "it is now rho_clamp_upper_bound"),
    (from_open_instruct, {"use_icepop": True}, "it is now rho_mask_lower_bound and rho_mask_upper_bound"),
    (from_open_instruct, {"use_vllm_logprobs": True}, "write use_rho_correction false"),
    (from_ms_swift, {"--log_rollout_offpolicy_metrics": True}, "so leave it out"),
    (from_prime_rl, {"type": "default", "token_mask_low": 0.125}, "the preset prime_rl_legacy_masks has them"),
    (from_prime_rl, {"ratio_type": "token", "geo_mask_high": 10.0}, "the preset prime_rl_legacy_masks has them"),
    (from_prime_rl, {"dppo_mask_low": 0.2}, "read it with version='2026-08', or write the names of 2026-09, eps"),
    (from_prime_rl, {"trainer": {"loss": {"type": "ipo", "kl_tau": 1e-3}}}, "read it with version='2026-08'"),
    (from_trl, {f"{_IS}_cap": 2.0}, f"TRL before 1.6 had it; it is now {_IS}_clip_max"),
    (from_trl, {"importance_sampling_level": "sequence"}, "so leave it out"),
    (from_trl, {"learning_rate": 1e-6}, "What is not about the correction is not read: leave it out."),
    (from_openrlhf, {"--enable_vllm_is_correction": True}, "it is now is_correction_level token, seq or off"),
    (from_openrlhf, {"--vllm_is_truncated_threshold": 2.0}, "it is now is_correction_threshold, two numbers"),
    (from_openrlhf, {"is_correction_enable": True}, "it is now is_correction_level token, seq or off"),
    (from_openrlhf, {"is_correction_type": "seq-mask-tis"}, "seq-mask-tis is level seq"),
    (from_openrlhf, {"use_icepop": True}, "it is now is_correction_mode mask"),
    (from_roll, {"infer_correction": True, "infer_is_mode": "token"}, "is_weight: {enabled: true, weight_type: token"),
    (from_roll, {"enable_seq_reject": "geometric"}, "it is an entry of filters"),
    (from_roll, {"infer_catastrophic_threshold": 1e-4}, "today's has no such filter"),
    (from_roll, {"pg_variant": "tis", "tis_upper_bound": 1.0}, "not the mismatch, so leave it out"),
    (from_skyrl, {"trainer": {"algorithm": {"off_policy_correction": {}, "eps_clip_low": 0.2}}}, "leave it out"),
    (from_slime, {"--get-mismatch-metrics": True, "--use-tis": True}, "leave it out"),
    (from_nemo_rl, {"loss_fn": {"reference_policy_kl_penalty": 0.0}}, "leave it out"),
]


def test_the_successor_of_a_key_is_named() -> None:
    for read, given, message in RETIRED:
        with pytest.raises(UsageError) as caught:
            read(given)
        assert message in str(caught.value), (given, str(caught.value))


def test_places_that_no_exporter_of_ours_writes() -> None:
    """Check Hydra's overrides, an empty parent, the argument of xtuner's loss, and loss_fn without its name."""
    token = CorrectionConfig(rollout_is="token", rollout_is_threshold=3.0)
    place = "algorithm.rollout_correction."
    assert from_verl({f"{place}rollout_is": "token", f"+{place}rollout_is_threshold": 3.0}) == token
    assert from_verl({"algorithm": {"rollout_correction": None}}) == CorrectionConfig()
    assert from_xtuner({"rollout_is": {"rollout_is_threshold": (3.0, 0.0)}}) == token
    ratio = {"truncated_importance_sampling_type": "tis", "truncated_importance_sampling_ratio": 3.0}
    assert from_nemo_rl({"use_importance_sampling_correction": True, **ratio}) == token


def test_skyrls_text_keeps_a_weight_from_counting_twice() -> None:
    """Check that the text names its loss: SkyRL 0.5.0's default, dppo, compares π_θ with π_rollout itself."""
    config = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
    pasted = yaml.safe_load(skyrl_text(config))
    assert pasted["trainer"]["algorithm"]["policy_loss_type"] == "regular"
    assert from_skyrl(pasted) == config
    # The deprecated switch is next to off_policy_correction, in trainer.algorithm.
    assert from_skyrl({"algorithm": {"use_tis": True, "tis_imp_ratio_cap": 2.0, "off_policy_correction": {}}}) == config
    with pytest.raises(UsageError, match="dppo compares π_θ with π_rollout, so a weight with it counts the gap twice"):
        from_skyrl({"algorithm": pasted["trainer"]["algorithm"] | {"policy_loss_type": "dppo"}})


def test_skyrls_replay_of_the_support_is_an_option_of_our_trainer() -> None:
    """Check the two switches of SkyRL 0.4.0 (skyrl/train/config/config.py:1862-1866), which are no correction."""
    capture = {"generator": {"inference_engine": {"enable_return_sample_support_set": True}}}
    algorithm = {"enable_sample_support_replay": True, "off_policy_correction": {"tis_ratio_type": "token"}}
    token = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
    for given in (capture | {"trainer": {"algorithm": algorithm}}, {"algorithm": algorithm}, algorithm):
        assert support_replay(given), given
        assert from_skyrl(given) == token, given
    for given in (capture, capture | {"algorithm": {"enable_sample_support_replay": False}}, {}):
        assert not support_replay(given), given
        assert from_skyrl(given) == CorrectionConfig(), given
    off = {"generator": {"inference_engine": {"enable_return_sample_support_set": False}}}
    with pytest.raises(UsageError, match="SkyRL refuses enable_sample_support_replay without generator"):
        from_skyrl(off | {"trainer": {"algorithm": algorithm}})
    with pytest.raises(UsageError, match="unknown key of SkyRL's inference_engine 'tensor_parallel_size'"):
        from_skyrl({"generator": {"inference_engine": {"tensor_parallel_size": 2}}})
