"""OpenRLHF's is_correction flags as ours and back (0.11.2: openrlhf/models/loss.py:121-247, cli/train_ppo_ray.py).

It has a level, a mode, a gate and a threshold. A gate drops tokens, or sequences by their mean; the other tokens keep
their unbounded ratio.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import choice, number, options, pair, refuse_ignored, settings
from rlcorr.systems.mapping.refusals import bounds, is_unbounded, only_rule, ratio_rule, require_plain
from rlcorr.systems.mapping.serialize import as_flags, commented

VERSION = "0.11.2"
FIELDS: dict[str, Any] = {
    "is_correction_level": "off",
    "is_correction_mode": "mask",
    "is_correction_gating": "ratio",
    "is_correction_threshold": (0.5, 5.0),
}
"""The flags under --algo.advantage, and their defaults."""
_TYPE = (
    "an older OpenRLHF had it; now tis is is_correction_level token with is_correction_mode clip, icepop is token with "
    "mask, seq-mask-tis is level seq"
)
RETIRED = {
    "use_icepop": "it is now is_correction_mode mask",
    **dict.fromkeys(("is_correction_type", "vllm_is_correction_type"), _TYPE),
    **dict.fromkeys(
        ("is_correction_enable", "enable_vllm_is_correction"), "it is now is_correction_level token, seq or off"
    ),
    "vllm_is_truncated_threshold": "it is now is_correction_threshold, two numbers",
}
"""Flags of 0.11.0 (commit 3c3be623) and 0.9.9 → what to write now."""
GATES = {"binary_kl": "forward_kl", "tv": "binary_tv"}
"""OpenRLHF's gate → our divergence."""
SAME_NAME = {
    "binary_kl": "binary_kl is KL(π_rollout‖π_old) in OpenRLHF; in verl and here it is the larger of both directions; "
    "nearest: forward_kl, which is OpenRLHF's.",
    "abs_ratio_error": "OpenRLHF does not gate on |r − 1|; nearest: binary_tv, which is its gating tv.",
}
"""Our divergences whose name means another divergence in OpenRLHF → the error message."""


def from_openrlhf(source: Any) -> CorrectionConfig:
    """Return the configuration of the flags.

    `source` is a mapping {flag: value} with or without `--algo.advantage.`, or OpenRLHF's own `args.algo.advantage`. It
    is translated as follows:

    - token clip: weights truncated on both sides.
    - token mask with the ratio: weights that are 0 outside the bounds.
    - binary_kl or tv of tokens: a rule on binary KL(π_rollout‖π_old) or |π_rollout − π_old|, with raw token ratios.
    - a sequence's geometric mean, or its mean of these two: a rule, with raw token ratios.

    Raises `UsageError` for unknown keys and names, and for what OpenRLHF refuses or ignores.
    """
    source = options("OpenRLHF's correction", source, ("algo", "advantage"), RETIRED)
    values = settings("OpenRLHF's correction", source, FIELDS)
    level = choice("is_correction_level", values["is_correction_level"], ("off", "token", "seq"))
    mode = choice("is_correction_mode", values["is_correction_mode"], ("mask", "clip"))
    gate = choice("is_correction_gating", values["is_correction_gating"], ("ratio", *GATES))
    if mode == "clip" and (level == "seq" or gate != "ratio"):
        raise UsageError("is_correction_mode clip goes with level token and gating ratio alone in OpenRLHF.")
    if level == "off":
        refuse_ignored("OpenRLHF", values, FIELDS, list(FIELDS)[1:], "with is_correction_level off")
        return CorrectionConfig()
    low, high = _threshold(values["is_correction_threshold"], one=gate != "ratio")
    if gate != "ratio":
        prefix = "token" if level == "token" else "seq_mean"
        return _gated(RejectionRule.named(f"{prefix}_{GATES[gate]}", upper=high))
    return _gated(ratio_rule("seq_mean_k1", low, high)) if level == "seq" else _weights(low, high, mode)


def _threshold(source: Any, *, one: bool) -> tuple[float, float]:
    if isinstance(source, tuple | list) and len(source) == 1:
        source = (0.0, source[0])
    low, high = (
        pair("is_correction_threshold", source)
        if isinstance(source, tuple | list)
        else (0.0, number("is_correction_threshold", source))
    )
    if one and low > 0:
        raise UsageError(f"a divergence has an upper bound only in OpenRLHF; is_correction_threshold is {source!r}.")
    return low, high


def _weights(low: float, high: float, mode: str) -> CorrectionConfig:
    return CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=high,
        rollout_is_threshold_lower=low or None,
        rollout_is_mode="truncate" if mode == "clip" else "mask",
    )


def _gated(rule: RejectionRule) -> CorrectionConfig:
    return CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, rollout_rs=(rule,))


def to_openrlhf(config: CorrectionConfig) -> dict[str, Any]:
    """Return the flags without their prefix. Raises `UsageError` for what OpenRLHF cannot do."""
    require_plain(
        "OpenRLHF", config, bypass="policy_loss_type gspo, whose ratio is π_θ/π_rollout", loss="policy_loss_type"
    )
    return dict(zip(FIELDS, _settings(config), strict=True))


def _settings(config: CorrectionConfig) -> tuple[str, str, str, tuple[float, float]]:
    """Return level, mode, gate and threshold. Raises `UsageError` for what OpenRLHF cannot do."""
    gates = {f"{prefix}_{ours}": (level, theirs) for prefix, level in (("token", "token"), ("seq_mean", "seq"))
             for theirs, ours in GATES.items()} | {"seq_mean_k1": ("seq", "ratio")}  # fmt: skip
    for rejection in config.rollout_rs:
        if rejection.divergence in SAME_NAME:
            raise UsageError(SAME_NAME[rejection.divergence])
    rule = only_rule("OpenRLHF", config.rollout_rs, gates, "seq_mean_k1, or a mean of forward_kl or binary_tv")
    if config.rollout_is is None and rule is None:
        return "off", "mask", "ratio", (0.5, 5.0)
    if config.rollout_is != "token":
        raise UsageError(
            f"OpenRLHF's weights are token ratios; nearest: rollout_is='token'; got {config.rollout_is!r}."
        )
    if rule is None:
        lower, upper = config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold)
        return "token", "clip" if config.rollout_is_mode == "truncate" else "mask", "ratio", (lower, upper)
    if not is_unbounded(config):
        raise UsageError("OpenRLHF's gate weighs kept tokens with raw ratios; nearest: rollout_is_threshold=inf.")
    level, gate = gates[rule.name]
    return level, "mask", gate, bounds(rule)


def openrlhf_text(config: CorrectionConfig) -> str:
    """Return the flags of `openrlhf.cli.train_ppo_ray`. Raises `UsageError` as `to_openrlhf` does."""
    return commented(as_flags(to_openrlhf(config), "--algo.advantage."), [f"OpenRLHF {VERSION}"])
