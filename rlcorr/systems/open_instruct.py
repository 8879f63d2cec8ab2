"""open-instruct's rho flags as ours and back, and its rollouts.

Source: commit e6c3044a, open_instruct/grpo_utils.py:110-135, 325-337, 372-463. 0 means "no bound". A token that a mask
drops still counts in the denominator.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.dumps import WithoutPair
from rlcorr.systems.mapping.keys import number, options, refuse_ignored, settings, switch
from rlcorr.systems.mapping.refusals import bounds, no_rule, only_rule, ratio_rule, require_plain
from rlcorr.systems.mapping.serialize import as_flags, commented

ROLLOUTS = WithoutPair(
    frozenset({"response_tokens", "logprobs"}), "open-instruct's rollouts, which have only vLLM's log-probs"
)

FIELDS: dict[str, Any] = {
    "use_rho_correction": True,
    "rho_clamp_lower_bound": 0.0,
    "rho_clamp_upper_bound": 2.0,
    "rho_mask_lower_bound": 0.0,
    "rho_mask_upper_bound": 0.0,
    "rho_mask_sequence_level": False,
    "rho_mask_tv_divergence": False,
}
"""The flags and their defaults."""
RETIRED = {
    "truncated_importance_sampling_ratio_cap": "it is now rho_clamp_upper_bound, and 0 is now use_rho_correction false "
    "(pull request 1650)",
    "use_icepop": "it is now rho_mask_lower_bound and rho_mask_upper_bound with rho_clamp_upper_bound 0 (pull "
    "request 1650)",
    "use_vllm_logprobs": "if it is true there is no correction: leave it out, and write use_rho_correction false",
}
RULES = {"token": "token_k1", "geometric": "seq_mean_k1"}
VACO = "seq_mean_abs_ratio_error_outward"
"""The rule of rho_mask_tv_divergence."""


def from_open_instruct(source: Any) -> CorrectionConfig:
    """Return the configuration of the flags.

    `source` is a mapping {flag: value} with or without `--`, or open-instruct's own object.

    ρ is r, or with rho_mask_sequence_level the geometric mean. It is clamped, and set to 0 outside the mask's bounds.
    With rho_mask_tv_divergence the mask's bounds are on the sequence's mean |r − 1|, and only tokens that the update
    moves further away are masked. Raises `UsageError` for unknown keys and for bounds that open-instruct refuses or
    ignores.
    """
    source = options("open-instruct's correction", source, retired=RETIRED)
    values = settings("open-instruct's correction", source, FIELDS)
    if not switch("use_rho_correction", values["use_rho_correction"]):
        refuse_ignored("open-instruct", values, FIELDS, list(FIELDS)[1:], "without use_rho_correction")
        return CorrectionConfig()
    low, high = _sides("clamp", values)
    mask_low, mask_high = _sides("mask", values)
    level: Any = "geometric" if switch("rho_mask_sequence_level", values["rho_mask_sequence_level"]) else "token"
    tv, masks = switch("rho_mask_tv_divergence", values["rho_mask_tv_divergence"]), mask_low or mask_high
    if tv and not masks:
        raise UsageError(
            "open-instruct ignores rho_mask_tv_divergence without rho_mask_upper_bound: leave it out, or give it."
        )
    if not tv and masks and not low and not high:
        upper = mask_high or math.inf
        return CorrectionConfig(
            rollout_is=level, rollout_is_mode="mask", rollout_is_threshold=upper, rollout_is_threshold_lower=mask_low
        )
    rules: tuple[RejectionRule, ...] = ()
    if masks and tv:
        if mask_low is not None:
            raise UsageError("a lower bound on |r − 1| has no counterpart; nearest: rho_mask_lower_bound 0.")
        rules = (RejectionRule.named(VACO, upper=mask_high or math.inf),)
    elif masks:
        rules = (ratio_rule(RULES[level], mask_low, mask_high),)
    return CorrectionConfig(
        rollout_is=level, rollout_is_threshold=high or math.inf, rollout_is_threshold_lower=low, rollout_rs=rules
    )


def _sides(kind: str, values: dict[str, Any]) -> tuple[float | None, float | None]:
    low, high = (number(f"rho_{kind}_{side}_bound", values[f"rho_{kind}_{side}_bound"]) for side in ("lower", "upper"))
    if not 0 <= low < 1 or not (high == 0 or high > 1):
        raise UsageError(f"open-instruct wants 0 ≤ rho_{kind}_lower_bound < 1 and rho_{kind}_upper_bound 0 or > 1.")
    return low or None, high or None


def to_open_instruct(config: CorrectionConfig) -> dict[str, Any]:
    """Return the flags. Raises `UsageError` for what open-instruct cannot do."""
    require_plain("open-instruct", config, bypass="--use_vllm_logprobs, without a correction", loss="--loss_fn")
    if config.rollout_is is None:
        if config.rollout_rs:
            raise UsageError(
                "open-instruct rejects only together with weights; nearest: rollout_is='token', a threshold of 1e9."
            )
        return FIELDS | {"use_rho_correction": False}
    if config.rollout_is == "sequence":
        raise UsageError("open-instruct's sequence ratio is the geometric mean; nearest: rollout_is='geometric'.")
    nearest = "token_k1, seq_mean_k1 with geometric weights, or seq_mean_abs_ratio_error_outward"
    rule = only_rule("open-instruct", config.rollout_rs, (RULES[config.rollout_is], VACO), nearest)
    weights = _bounds(config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold))
    if config.rollout_is_mode == "mask":
        if rule is not None:
            raise UsageError("open-instruct has one mask; nearest: truncated weights and the rule.")
        clamp, mask = (0.0, 0.0), weights
    else:
        clamp, mask = weights, (0.0, 0.0) if rule is None else _bounds(*bounds(rule))
        if rule is not None and clamp == (0.0, 0.0) and rule.name != VACO:
            raise no_rule("open-instruct", rule, "rollout_is_mode='mask' with the same bounds, which is what it does")
    names = [name for name in FIELDS if name.endswith("_bound")]
    sides = dict(zip(names, (*clamp, *mask), strict=True))
    switches = {"rho_mask_sequence_level": config.rollout_is == "geometric",
                "rho_mask_tv_divergence": rule is not None and rule.name == VACO}  # fmt: skip
    return FIELDS | sides | switches


def _bounds(low: float, high: float) -> tuple[float, float]:
    high = 0.0 if high == math.inf else high
    if not 0 <= low < 1 or not (high == 0 or high > 1):
        raise UsageError(
            f"open-instruct wants a lower bound below 1 and an upper one above 1; got {low:g} and {high:g}; nearest: "
            f"0.999 and 1.001."
        )
    return low, high


def open_instruct_text(config: CorrectionConfig) -> str:
    """Return the flags. Raises `UsageError` as `to_open_instruct` does."""
    flags = {name: str(value).lower() for name, value in to_open_instruct(config).items()}
    return commented(as_flags(flags), ["open-instruct (commit e6c3044a)"])
