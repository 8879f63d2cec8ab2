"""Settings that a system ignores silently are refused: a threshold without its switch, a bound that a mode ignores.

Defaults and ignored settings are from the systems' own sources, at the versions and lines that the translators name.
"""

from collections.abc import Callable
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.systems.areal import from_areal
from rlcorr.systems.ms_swift import from_ms_swift
from rlcorr.systems.nemo_rl import from_nemo_rl
from rlcorr.systems.open_instruct import from_open_instruct
from rlcorr.systems.openrlhf import from_openrlhf
from rlcorr.systems.prime_rl import from_prime_rl
from rlcorr.systems.roll import from_roll
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.slime import MIS_PATH, from_slime
from rlcorr.systems.torchtitan import from_torchtitan
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl.config import from_verl
from rlcorr.systems.xtuner import from_xtuner

_TIS, _IS, _MS = "truncated_importance_sampling", "vllm_importance_sampling", "rollout_importance_sampling"
ON = {"use_importance_sampling_correction": True}
MIS = {"use_tis": True, "tis_level": "token", "tis_batch_normalize": False}


def clamped(**fields: Any) -> dict[str, Any]:
    return {"use_decoupled_loss": True, "rejection_sampling": {"level": "token", **fields}}


def filtered(**fields: Any) -> dict[str, Any]:
    return {"filters": [{"enabled": True, **fields}]}


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
    "OpenRLHF": (
        from_openrlhf,
        [
            ({"is_correction_threshold": [0.5, 2.0]}, "with is_correction_level off"),
            ({"is_correction_gating": "tv"}, "OpenRLHF ignores is_correction_gating='tv'"),
            ({"is_correction_level": "seq", "is_correction_mode": "clip"}, "goes with level token"),
        ],
        [{"is_correction_threshold": [0.5, 5.0]}],
    ),
    "prime-rl": (
        from_prime_rl,
        [
            ({"type": "icepop", "eps": 0.3}, "unknown key of prime-rl's loss icepop 'eps'"),
            ({"ratio_low": 0.2}, "unknown key of prime-rl's loss ipo 'ratio_low'"),
            ({"adv_tau": 2.0}, "adv_tau must be 1"),
        ],
        [{"adv_tau": 1.0}],
    ),
    "AReaL": (
        from_areal,
        [
            ({"rejection_sampling": {"upper": 2.0}}, "does nothing in AReaL without use_decoupled_loss"),
            (clamped(agg="max"), "AReaL ignores agg='max' with level: token"),
            (clamped(action="clamp", metric="kl_k1"), "clamp of token with kl_k1"),
            (clamped(metric="kl_k2", lower=0.1), "a lower bound of 0.1 on kl_k2"),
        ],
        [clamped(agg="mean"), {"use_decoupled_loss": False, "rejection_sampling": None}],
    ),
    "slime": (
        from_slime,
        [
            ({"tis_clip": 5.0}, "slime ignores tis_clip=5.0 without --use-tis"),
            ({"--tis-clip-low": 0.5}, "slime ignores tis_clip_low=0.5 without --use-tis"),
            ({"custom_tis_function_path": MIS_PATH}, "without --use-tis"),
            ({"use_tis": True, "custom_tis_function_path": MIS_PATH}, "give the keys of that file"),
            ({"use_tis": True, "opsm_delta": 0.1}, "without --use-opsm"),
            ({"use_opsm": True}, "without --use-rollout-logprobs"),
            ({"use_tis": True, "use_rollout_logprobs": True}, "would correct twice"),
            (MIS | {"use_tis": False}, "does nothing without use_tis: true"),
            (MIS | {"use_rs": False, "rs_lower_bound": 0.9}, "slime ignores rs_lower_bound=0.9 with use_rs: false"),
            (MIS | {"use_rs": False, "rs_veto_threshold": 1e-3}, "with use_rs: false"),
            (MIS | {"use_rs": False, "tis_lower_bound": 0.1}, "with tis_mode: truncate"),
            (MIS | {"rs_lower_bound": 0.9, "tis_lower_bound": 0.1}, "with tis_mode: truncate"),
            ({"tis_level": "geometric", "tis_mode": "clip"}, "refuses tis_batch_normalize with tis_level: geometric"),
        ],
        # The last two: mis.yaml's own veto, which use_rs switches off as well, and a bound that use_rs falls back on.
        [{"tis_clip": 2.0}, MIS | {"use_rs": False, "rs_veto_threshold": 1e-4}, MIS | {"tis_lower_bound": 0.1}],
    ),
    "NeMo RL": (
        from_nemo_rl,
        [
            ({"loss_fn": ON | {f"{_TIS}_ratio": 2.0}}, f"ignores {_TIS}_ratio=2.0 without {_TIS}_type"),
            ({"loss_fn": ON | {f"{_TIS}_ratio_min": 0.5}}, f"ignores {_TIS}_ratio_min=0.5 without {_TIS}_type"),
            ({"loss_fn": {f"{_TIS}_ratio": 2.0}}, "without use_importance_sampling_correction: true"),
            ({"loss_fn": {f"{_TIS}_type": "tis"}}, "NeMo RL refuses"),
            ({"loss_fn": ON | {f"{_TIS}_type": "tis"}}, f"{_TIS}_ratio must be a number; got None"),
        ],
        [{"loss_fn": ON}, {"loss_fn": {f"{_TIS}_ratio": None}}],
    ),
    "ROLL": (
        from_roll,
        [
            ({"is_weight": {"upper_bound": 2.0}}, "ROLL ignores upper_bound=2.0 in is_weight without enabled: true"),
            ({"filters": [{"agg_type": "geometric"}]}, "in a filter without enabled: true"),
            (filtered(diff_low=-0.1), "ROLL ignores diff_low=-0.1 without diff_enabled: true"),
            (filtered(ratio_enabled=False, diff_enabled=True, ratio_low=0.5), "without ratio_enabled: true"),
            (filtered(ratio_enabled=False), "rejects nothing"),
        ],
        # A switch that is explicitly off is accepted.
        [{"is_weight": {"enabled": False, "upper_bound": 2.0}, "filters": [{"enabled": False, "ratio_low": 0.9}]}],
    ),
    "open-instruct": (
        from_open_instruct,
        [
            ({"use_rho_correction": False, "rho_mask_upper_bound": 5.0}, "without use_rho_correction"),
            ({"rho_mask_tv_divergence": True}, "ignores rho_mask_tv_divergence without rho_mask_upper_bound"),
            ({"rho_mask_tv_divergence": True, "rho_mask_lower_bound": 0.5}, "a lower bound on |r − 1|"),
        ],
        [{"use_rho_correction": False, "rho_clamp_upper_bound": 2.0}],
    ),
    "ms-swift": (
        from_ms_swift,
        [
            ({f"{_MS}_threshold": 3.0}, f"ms-swift ignores {_MS}_threshold=3.0 without {_MS}_mode"),
            ({f"{_MS}_mode": "sequence_mask", "off_policy_sequence_mask_delta": 0.1}, "keep one"),
        ],
        [{f"{_MS}_threshold": 2.0, f"{_MS}_mode": None}],
    ),
    "xtuner": (
        from_xtuner,
        [
            ({"rollout_is_veto_threshold": (20, 0)}, "xtuner ignores rollout_is_veto_threshold=(20, 0) without"),
            ({"rollout_is_mode": "both"}, "without rollout_is_threshold"),
            (
                {"rollout_is_threshold": (5, 0.5), "rollout_is_mask_threshold": [5, 0.5]},
                "ignores rollout_is_mask_threshold=(5, 0.5) with rollout_is_mode truncate",
            ),
        ],
        [{"rollout_is_threshold": (5, 0), "rollout_is_mode": "mask", "rollout_is_mask_threshold": (5, 0.5)}],
    ),
    "torchtitan": (
        from_torchtitan,
        [({"clip_eps": 0.2, "ratio_clip_low": 0.2}, "unknown key of torchtitan's loss 'ratio_clip_low'")],
        [{"ratio_clip_high": 0.28}],
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
