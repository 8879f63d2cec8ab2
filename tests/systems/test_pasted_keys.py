"""Pasted mappings: for an old key the error names its successor, and the parents of a file's keys may be there."""

from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import export
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl.config import from_verl

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
    (from_trl, {f"{_IS}_cap": 2.0}, f"TRL before 1.6 had it; it is now {_IS}_clip_max"),
    (from_trl, {"importance_sampling_level": "sequence"}, "so leave it out"),
    (from_trl, {"learning_rate": 1e-6}, "What is not about the correction is not read: leave it out."),
    (from_skyrl, {"trainer": {"algorithm": {"off_policy_correction": {}, "eps_clip_low": 0.2}}}, "leave it out"),
]


def test_the_successor_of_a_key_is_named() -> None:
    for read, given, message in RETIRED:
        with pytest.raises(UsageError) as caught:
            read(given)
        assert message in str(caught.value), (given, str(caught.value))


def test_places_that_no_exporter_of_ours_writes() -> None:
    """Check Hydra's overrides and an empty parent."""
    token = CorrectionConfig(rollout_is="token", rollout_is_threshold=3.0)
    place = "algorithm.rollout_correction."
    assert from_verl({f"{place}rollout_is": "token", f"+{place}rollout_is_threshold": 3.0}) == token
    assert from_verl({"algorithm": {"rollout_correction": None}}) == CorrectionConfig()


def test_skyrls_text_keeps_a_weight_from_counting_twice() -> None:
    """Check that the text names its loss: SkyRL 0.5.0's default, dppo, compares π_θ with π_rollout itself."""
    config = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
    pasted = yaml.safe_load(export(config, "SkyRL"))
    assert pasted["trainer"]["algorithm"]["policy_loss_type"] == "regular"
    assert from_skyrl(pasted) == config
    # The deprecated switch is next to off_policy_correction, in trainer.algorithm.
    assert from_skyrl({"algorithm": {"use_tis": True, "tis_imp_ratio_cap": 2.0, "off_policy_correction": {}}}) == config
    with pytest.raises(UsageError, match="dppo compares π_θ with π_rollout, so a weight with it counts the gap twice"):
        from_skyrl({"algorithm": pasted["trainer"]["algorithm"] | {"policy_loss_type": "dppo"}})
