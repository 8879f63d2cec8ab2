"""Settings that a system ignores silently are refused: a threshold without its switch, a bound that a mode ignores.

Defaults and ignored settings are from the systems' own sources, at the versions and lines that the translators name.
"""

from collections.abc import Callable
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl.config import from_verl

_IS = "vllm_importance_sampling"
Case = tuple[dict[str, Any], str]
# System → its reader, refused mappings with a part of the message, and similar mappings that are accepted.
SYSTEMS: dict[str, tuple[Callable[..., Any], list[Case], list[dict[str, Any]]]] = {
    "verl": (
        from_verl,
        [
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
            ({f"{_IS}_correction": False, f"{_IS}_clip_max": 2.0}, f"TRL ignores {_IS}_clip_max=2.0 without use_vllm"),
            ({"use_vllm": False, f"{_IS}_mode": "token_mask"}, "without use_vllm"),
            ({"use_vllm": False, "off_policy_mask_threshold": 0.5}, "compares π_θ with π_old, which is no mismatch"),
            ({"vespo_k_pos": 1.0}, "unknown key of TRL's GRPOConfig 'vespo_k_pos'"),
            ({"loss_type": "cispo"}, "loss_type 'cispo' is not read"),
            ({f"{_IS}_mode": "token_truncate", f"{_IS}_clip_max": None}, "cannot clamp without a bound"),
        ],
        [{f"{_IS}_correction": False, f"{_IS}_clip_max": 3.0}, {"loss_type": "dr_grpo"}],
    ),
}


def refusal(read: Callable[..., Any], given: dict[str, Any]) -> str:
    """Return the message of the error, or what was read if there is no error."""
    try:
        return f"read as {read(given)}"
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_the_system_would_ignore_is_refused(system: str) -> None:
    read, refused, accepted = SYSTEMS[system]
    for given, message in refused:
        assert message in refusal(read, given), (system, given)
    for given in accepted:
        assert refusal(read, given).startswith("read as "), (system, given)
