"""Named corrections: verl's nineteen, with its names and its default numbers."""

from dataclasses import dataclass

from rlcorr.errors import unknown
from rlcorr.types import CorrectionConfig, RejectionRule

VERL = "verl, RolloutCorrectionConfig (commit 1dda039b)"
TIS = "truncated importance sampling; Yao et al., 2025, fengyao.notion.site/off-policy-rl"
MIS = "masked importance sampling; Liu, Li et al., 2025, yingru.notion.site"
ICEPOP = "IcePop; Ring-1T, arXiv:2510.18855"
TRM = "trust region masking; Li et al., arXiv:2512.23075"


@dataclass(frozen=True)
class Preset:
    """A configuration with its provenance and the situation in which it hurts."""

    config: CorrectionConfig
    source: str
    hurts: str


_PRODUCT = RejectionRule.named("seq_sum_k1", lower=0.5, upper=2.0)
_GEOMETRIC = RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001)
_K3 = RejectionRule.named("seq_mean_k3", upper=0.01)

_LONG = "long sequences: the product of many ratios leaves any fixed bound, so most weights sit on it"
_TIGHT = "noisy engines: ±0.1 % on the geometric mean rejects nearly everything in bf16 or with experts"
_BIAS = "large mismatch: ratios beyond the cap are all treated alike, which biases the gradient"
_DROP = "rare but informative tokens lie outside the band and never teach anything"
_RARE = "one very unlikely token can lift a short sequence over the limit"
_NONE = "any mismatch: nothing is corrected"


def _config(**changes: object) -> CorrectionConfig:
    return CorrectionConfig(**changes)  # pyright: ignore[reportArgumentType]


def _icepop(**changes: object) -> CorrectionConfig:
    return _config(
        rollout_is="token", rollout_is_mode="mask", rollout_is_threshold_lower=0.5, rollout_is_threshold=5.0, **changes
    )


_PG = {"bypass_mode": True, "loss_type": "reinforce"}

PRESETS: dict[str, Preset] = {
    "disabled": Preset(_config(), VERL, _NONE),
    "decoupled_token_is": Preset(_config(rollout_is="token"), f"{VERL}; {TIS}", _BIAS),
    "decoupled_seq_is": Preset(_config(rollout_is="sequence"), f"{VERL}; {TIS}", _LONG),
    "decoupled_token_icepop": Preset(_icepop(), f"{VERL}; {ICEPOP}", _DROP),
    "decoupled_seq_is_rs": Preset(_config(rollout_is="sequence", rollout_rs=(_PRODUCT,)), f"{VERL}; {MIS}", _LONG),
    "decoupled_geo_rs": Preset(_config(rollout_rs=(_GEOMETRIC,)), f"{VERL}; {MIS}", _TIGHT),
    "decoupled_geo_rs_seq_tis": Preset(_config(rollout_is="sequence", rollout_rs=(_GEOMETRIC,)), VERL, _TIGHT),
    "decoupled_geo_rs_token_tis": Preset(_config(rollout_is="token", rollout_rs=(_GEOMETRIC,)), VERL, _TIGHT),
    "decoupled_k3_rs": Preset(_config(rollout_rs=(_K3,)), f"{VERL}; {TRM}", _RARE),
    "decoupled_k3_rs_seq_tis": Preset(_config(rollout_is="sequence", rollout_rs=(_K3,)), f"{VERL}; {TRM}", _LONG),
    "decoupled_k3_rs_token_tis": Preset(_config(rollout_is="token", rollout_rs=(_K3,)), f"{VERL}; {TRM}", _RARE),
    "bypass_ppo_clip": Preset(_config(bypass_mode=True), VERL, _BIAS),
    "bypass_ppo_clip_geo_rs": Preset(_config(bypass_mode=True, rollout_rs=(_GEOMETRIC,)), VERL, _TIGHT),
    "bypass_ppo_clip_k3_rs": Preset(_config(bypass_mode=True, rollout_rs=(_K3,)), VERL, _RARE),
    "bypass_pg_is": Preset(_config(rollout_is="sequence", **_PG), VERL, _LONG),
    "bypass_pg_token_icepop": Preset(_icepop(**_PG), f"{VERL}; {ICEPOP}", _DROP),
    "bypass_pg_geo_rs": Preset(_config(rollout_rs=(_GEOMETRIC,), **_PG), VERL, _TIGHT),
    "bypass_pg_geo_rs_seq_tis": Preset(_config(rollout_is="sequence", rollout_rs=(_GEOMETRIC,), **_PG), VERL, _TIGHT),
    "bypass_pg_geo_rs_token_tis": Preset(_config(rollout_is="token", rollout_rs=(_GEOMETRIC,), **_PG), VERL, _TIGHT),
}


def preset(name: str) -> CorrectionConfig:
    """The configuration of that name. Raises `UsageError` with the nearest name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].config
