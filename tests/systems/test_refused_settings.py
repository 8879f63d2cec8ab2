"""Settings that a system ignores silently, and keys of older versions, are refused with one sentence.

Defaults and ignored settings are from the systems' own sources, at the versions and lines that the readers name; the
retired keys are from pull requests and changelogs.
"""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import export
from rlcorr.systems.pasted import read_pasted
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl.config import from_verl

LEAVE_OUT = "read: leave it out."
_IS = "vllm_importance_sampling"
Case = tuple[dict[str, Any], str]
# System → its reader, refused mappings with a part of the message, and similar mappings that are accepted.
SYSTEMS: dict[str, tuple[Callable[..., Any], list[Case], list[dict[str, Any]]]] = {
    "verl": (
        from_verl,
        [
            ({"rollout_is_level": "token", "rollout_is": True}, "now write rollout_is: token, or sequence"),
            ({"algorithm": {"rollout_is": True, "rollout_is_mode": "mask"}}, "mask, now rollout_rs"),
            ({"rollout_is": "token", "rollout_is_threshold_lower": 0.5}, 'rollout_is_threshold: "0.5_5.0"'),
            ({"rollout_is_veto_threshold": 1e-4}, "today's has no veto, nearest: rollout_rs: seq_max_k2"),
            ({"rollout_token_veto_threshold": 1e-4}, "today's has no veto, nearest: rollout_rs: seq_max_k2"),
            ({"rollout_rs": "geometric", "rollout_rs_threshold_lower": 0.9}, 'rollout_rs_threshold: "0.5_2.0"'),
            ({"actor_rollout_ref.actor.tis_imp_ratio_cap": 2.0}, "rollout_is: token with rollout_is_threshold: cap"),
            ({"behav_imp_weight_cap": 2.0}, "rollout_is: token with rollout_is_threshold: cap"),
            ({"bypass_old_logprob_for_rollout": True}, "it is now bypass_mode."),
            ({"use_pure_rollout_correction": True}, "bypass_mode: true with loss_type: reinforce"),
            ({"use_policy_gradient": True}, "bypass_mode: true with loss_type: reinforce"),
            ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5, 2.0"}, 'rollout_rs_threshold: "0.5_2.0"'),
            ({"rollout_rs": "token_k1", "rollout_rs_threshold": [0.5, 2.0]}, 'for a pair: "0.5_2.0"'),
            ({"rollout_is": "token", "rollout_is_threshold": "0.5,5.0"}, "as in \"0.5_2.0\"; got '0.5,5.0'"),
            ({"rollout_is": "token", "rollout_is_threshold": (0.5, 5.0)}, 'for a pair: "0.5_2.0"'),
            ({"rollout_rs_threshold": 0.01}, "verl ignores rollout_rs_threshold=0.01 without rollout_rs"),
            ({"rollout_rs": None, "rollout_rs_threshold": "0.5_2.0"}, "without rollout_rs"),
            ({"rollout_is": None, "rollout_is_threshold": 5.0}, "verl ignores rollout_is_threshold=5.0 without"),
            ({"rollout_is_batch_normalize": True}, "nothing to normalise"),
            ({"loss_type": "reinforce"}, "needs bypass_mode=True"),
            ({"bypass_mode": True, "rollout_is": "token"}, "for its metrics only"),
            ({"rollout_is": True, "rollout_is_threshold": 2.0}, "rollout_is=True is an older verl's"),
        ],
        [{"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}],
    ),
    "SkyRL": (
        from_skyrl,
        [
            ({"trainer": {"algorithm": {"off_policy_correction": {}, "eps_clip_low": 0.2}}}, "read: leave it out."),
            ({"token_tis_ratio_clip_high": 3.0}, "SkyRL ignores token_tis_ratio_clip_high=3.0 without tis_ratio_type"),
            ({"tis_ratio_type": "token", "sequence_tis_ratio_clip_high": 3.0}, "without tis_ratio_type: sequence"),
            ({"geo_mask_high": 1.1}, "without sequence_mask_metric: geometric"),
            ({"sequence_mask_metric": "geometric", "product_mask_low": 0.1}, "without sequence_mask_metric: product"),
            ({"tis_imp_ratio_cap": 2.0}, "without the deprecated use_tis: true"),
            ({"token_mask_is_threshold_low": 0.5}, "token_mask_is_threshold_high is missing"),
            ({"tis_ratio_type": "token", "policy_loss_type": "dppo"}, "counts the gap twice"),
            ({"outlier_token_is_threshold_low": 0.1, "policy_loss_type": "clip_cov"}, "regular; got 'clip_cov'"),
        ],
        [{"tis_ratio_type": None, "token_tis_ratio_clip_high": 2.0, "geo_mask_low": 0.99}],
    ),
    "TRL": (
        from_trl,
        [
            ({f"{_IS}_cap": 2.0}, f"TRL before 1.6 had it; it is now {_IS}_clip_max"),
            ({"importance_sampling_level": "sequence"}, "so leave it out"),
            ({"learning_rate": 1e-6}, "What is not about the correction is not read: leave it out."),
            ({f"{_IS}_correction": False, f"{_IS}_clip_max": 2.0}, f"TRL ignores {_IS}_clip_max=2.0 without use_vllm"),
            ({"use_vllm": False, f"{_IS}_mode": "token_mask"}, "without use_vllm"),
            ({"use_vllm": False, "off_policy_mask_threshold": 0.5}, "compares π_θ with π_old, which is no mismatch"),
            ({"vespo_k_pos": 1.0}, "What is not about the correction is not read: leave it out."),
            ({"loss_type": "cispo"}, "loss_type 'cispo' is not read"),
            ({f"{_IS}_mode": "token_truncate", f"{_IS}_clip_max": None}, "cannot clamp without a bound"),
        ],
        [{f"{_IS}_correction": False, f"{_IS}_clip_max": 3.0}, {"loss_type": "dr_grpo"}],
    ),
}


def refusal(read: Callable[..., Any], given: Any) -> str:
    """Return the message of the error, or what was read if there is no error."""
    try:
        return f"read as {read(given)}"
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_the_system_would_ignore_or_has_retired_is_refused(system: str) -> None:
    """Check the reader, and the door with the mapping as a text; the door counts keys that are about other things."""
    read, refused, accepted = SYSTEMS[system]
    for given, message in refused:
        assert message in refusal(read, given), (system, given)
        if not message.endswith(LEAVE_OUT):
            assert message in refusal(lambda text: read_pasted(text, system), repr(given)), (system, given)
    for given in accepted:
        assert refusal(read, given).startswith("read as "), (system, given)


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
