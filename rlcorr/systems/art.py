"""ART's dev.TrainConfig as ours and back (openpipe-art 0.5.23: art/loss.py:256-396, art/dev/train.py:11-43).

By default the old log-probs are those of the sampler, so the loss compares π_θ with π_rollout: bypass mode. With
precalculate_logprobs they are computed again, which gives three policies, and truncated_importance_sampling then clamps
π_old/π_rollout from above.

The default loss is CISPO: −sg(w) A log π_θ, with the ratio clamped to [1 − epsilon, 1 + epsilon_high] as w. In bypass
mode this is the policy gradient with truncated weights, so it is read as loss_type reinforce. Log-ratios are clamped to
±20 (±10 in float16). A log-prob that is missing counts as one of π_θ.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import choice, known_keys, number, optional, options, refuse_ignored, switch
from rlcorr.systems.mapping.refusals import no_rule, refuse_centering, refuse_normalised
from rlcorr.systems.mapping.serialize import as_call, commented

_LEVEL, _TIS, _MASK = "importance_sampling_level", "truncated_importance_sampling", "mask_prob_ratio"
_SECOND_CAP, _TAU = "max_negative_advantage_importance_sampling_weight", "kimi_k2_tau"
FIELDS: dict[str, Any] = {
    "ppo": False,
    "epsilon": None,
    "epsilon_high": None,
    _LEVEL: "token",
    _MASK: False,
    "precalculate_logprobs": False,
    _TIS: None,
    _SECOND_CAP: None,
    _TAU: None,
}
"""The fields that act on the correction. The epsilons have other defaults in each loss."""
CISPO_EPSILONS = (1.0, 4.0)
PPO_EPSILON = 0.2
REFUSED = {
    _SECOND_CAP: "it caps the ratios of positive advantages too, so it is a second epsilon_high; write the smaller one",
    _TAU: "it changes the advantages, not the correction",
}
"""Field → why it is not read."""


def from_art(source: Any) -> tuple[CorrectionConfig, LossConfig]:
    """Return the correction and the loss's numbers of dev.TrainConfig.

    - ppo is PPO's clip; otherwise the loss is CISPO, with token ratios or with the geometric mean of a sequence.
    - mask_prob_ratio sets a ratio outside the bounds to 0, as IcePop does.
    - truncated_importance_sampling clamps π_old/π_rollout; it needs precalculate_logprobs.

    Raises `UsageError` for unknown keys, for the levels that mix token and sequence, for what ART ignores, and for
    mask_prob_ratio where its zeros do not stay zero.

    >>> from_art({})[0].rollout_is_threshold  # CISPO's bounds are 0 and 5
    5.0
    """
    source = options("ART's dev.TrainConfig", source)
    known_keys("ART's dev.TrainConfig", source, FIELDS)
    values = FIELDS | dict(source)
    for name, reason in REFUSED.items():
        if values[name] is not None:
            raise UsageError(f"{name} of ART is not read: {reason}.")
    is_ppo, is_decoupled = (switch(name, values[name]) for name in ("ppo", "precalculate_logprobs"))
    low, high = _epsilons(source, is_ppo)
    level, is_masked = _level(values), switch(_MASK, values[_MASK])
    if not is_decoupled:
        refuse_ignored("ART", values, FIELDS, [_TIS], "without precalculate_logprobs")
    if is_ppo or is_decoupled:
        if level != "token" or is_masked:
            raise UsageError(f"ART's {_LEVEL} and {_MASK} are read for CISPO without precalculate_logprobs only.")
        return _clipped(values, is_ppo, is_decoupled), LossConfig(clip_ratio_low=low, clip_ratio_high=high)
    if is_masked and low < 1:
        raise UsageError(f"with epsilon below 1 ART clamps the zeros of {_MASK} to 1 − epsilon; nearest: epsilon=1.0.")
    weights = CorrectionConfig(
        rollout_is=level,
        rollout_is_threshold=_rounded(1 + high),
        rollout_is_threshold_lower=_rounded(1 - low) if low < 1 else None,
        rollout_is_mode="mask" if is_masked else "truncate",
        bypass_mode=True,
        loss_type="reinforce",
    )
    return weights, LossConfig()


def _epsilons(source: Mapping[str, Any], is_ppo: bool) -> tuple[float, float]:
    """Return the widths below and above 1. An epsilon_high of None is epsilon; one that is missing is 4 in CISPO."""
    low_default, high_default = (PPO_EPSILON, None) if is_ppo else CISPO_EPSILONS
    low = number("epsilon", source.get("epsilon", low_default))
    high = optional("epsilon_high", source.get("epsilon_high", high_default))
    return low, low if high is None else high


def _level(values: dict[str, Any]) -> Any:
    level = choice(_LEVEL, values[_LEVEL], ("token", "sequence", "average", "geometric_average"))
    if level in ("average", "geometric_average"):
        raise UsageError(f"ART's {_LEVEL} {level!r} mixes token and sequence ratios; nearest: token, or sequence.")
    return "token" if level == "token" else "geometric"


def _clipped(values: dict[str, Any], is_ppo: bool, is_decoupled: bool) -> CorrectionConfig:
    cap = optional(_TIS, values[_TIS])
    weights: dict[str, Any] = {} if cap is None else {"rollout_is": "token", "rollout_is_threshold": cap}
    return CorrectionConfig(bypass_mode=not is_decoupled, loss_type="ppo_clip" if is_ppo else "cispo", **weights)


def _rounded(value: float) -> float:
    """Round away the digits that adding and subtracting 1 has left."""
    return float(f"{value:.12g}")


def to_art(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of dev.TrainConfig; `loss` has the bounds of the clip. Raises `UsageError` for the rest.

    >>> to_art(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0))["truncated_importance_sampling"]
    2.0
    """
    loss = loss or LossConfig()
    refuse_centering("ART", loss)
    refuse_normalised("ART", config)
    if config.denominator == "kept":
        raise UsageError("ART divides by all tokens of the assistant; nearest: denominator='fixed'.")
    if config.rollout_rs:
        raise no_rule("ART", config.rollout_rs[0], "rollout_is_mode='mask' with loss_type='reinforce' in bypass mode")
    if config.bypass_mode and config.loss_type == "reinforce":
        return _weights(config)
    if config.loss_type != "ppo_clip" and (config.bypass_mode or config.loss_type != "cispo"):
        raise UsageError(
            f"ART has PPO's clip and CISPO; nearest: ppo_clip, cispo without bypass_mode, or reinforce with weights in "
            f"bypass mode; got {config.loss_type!r}."
        )
    fields: dict[str, Any] = {
        "ppo": config.loss_type == "ppo_clip",
        "epsilon": loss.clip_ratio_low,
        "epsilon_high": loss.clip_ratio_high,
        "precalculate_logprobs": not config.bypass_mode,
    }
    return fields | _truncation(config)


def _truncation(config: CorrectionConfig) -> dict[str, Any]:
    if config.rollout_is is None:
        return {}
    if config.rollout_is != "token" or config.rollout_is_mode == "mask" or config.rollout_is_threshold_lower:
        raise UsageError("ART clamps token ratios from above; nearest: rollout_is='token', truncate, no lower bound.")
    return {_TIS: float(config.rollout_is_threshold)}


def _weights(config: CorrectionConfig) -> dict[str, Any]:
    lower, upper = config.rollout_is_threshold_lower or 0.0, config.rollout_is_threshold
    if config.rollout_is not in ("token", "geometric"):
        raise UsageError(
            f"ART weighs with token ratios, or with the geometric mean of a sequence; nearest: rollout_is='token'; got "
            f"{config.rollout_is!r}."
        )
    if upper == math.inf or lower > 1:
        raise UsageError("ART's CISPO clamps to 0 ≤ low ≤ 1 and a finite upper bound; nearest: 1e9.")
    is_masked = config.rollout_is_mode == "mask"
    if is_masked and lower:
        raise UsageError(f"ART's {_MASK} has no lower bound that rejects; nearest: no rollout_is_threshold_lower.")
    level = "token" if config.rollout_is == "token" else "sequence"
    fields = {"ppo": False, "epsilon": _rounded(1 - lower), "epsilon_high": _rounded(upper - 1)}
    return fields | {_LEVEL: level, _MASK: is_masked}


def art_text(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return the call of dev.TrainConfig. Raises `UsageError` as `to_art` does."""
    return commented(as_call("dev.TrainConfig", to_art(config, loss)), ["ART, openpipe-art 0.5.23"])
