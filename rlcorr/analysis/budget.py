"""From what one can afford to the threshold: keep so many tokens, or so much of the effective sample size.

A token that is kept passes every bound of the correction, not only the one that is solved for.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.analysis.sweep import BoundMetrics, Sweep, sweep_rule, sweep_weights
from rlcorr.bounds import LARGEST, Side, at_threshold, moved_rule, tight_thresholds, usual_thresholds
from rlcorr.config import CorrectionConfig
from rlcorr.correction import between, log_weights, old_log_probs
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.ratios import log_ratio
from rlcorr.rejection import reject
from rlcorr.rules import RULE_NAMES, SIGNED, RejectionRule
from rlcorr.types import TokenBatch

POINTS, TIGHT_POINTS = 2000, 500
"""Thresholds that are tried, evenly in the logarithm of their distance from neutral: from the 5 % closest items to the
farthest, and before them down to the closest."""


def keep_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, rule: int | None = None) -> float:
    """The tightest threshold (`at_threshold`, both sides together) at which this share of the response tokens is kept
    by all bounds of the correction. Where the threshold truncates weights, a token whose weight it changes does not
    count. Raises `UsageError` where no threshold does it, and says which other bounds reject."""
    thresholds, inside = _inside(batch, correction, rule)
    enough = inside >= share
    if not bool(enough.any()):
        raise UsageError(
            f"no threshold leaves {share:g} of the tokens inside; the loosest leaves {float(inside[-1]):g}."
            + _other_bounds(batch, correction, rule)
        )
    return thresholds[int(enough.long().argmax())]


def _inside(batch: TokenBatch, correction: CorrectionConfig, rule: int | None) -> tuple[list[float], Tensor]:
    """Thresholds, the tightest first, and the share of the response tokens that each leaves as they are."""
    thresholds, metrics = _curve(batch, correction, rule)
    truncates = moved_rule(correction, rule) is None and correction.rollout_is_mode == "truncate"
    return thresholds, metrics.kept_fraction - (metrics.oob_ratio if truncates else 0)


def with_budget(batch: TokenBatch, correction: CorrectionConfig, rule: str, share: float) -> CorrectionConfig:
    """The correction with one more rejection rule, at the tightest bound at which this share of the batch's tokens is
    kept: one number for both sides where the divergence has a direction; of rules for negative advantages the lower
    side alone, as OPSM has it. Without the rule where no bound that a float can say keeps so much: the ratio of a long
    answer may be e^-1000. Raises as `keep_at_least`, but for that.

    >>> old, rollout = torch.tensor([[0.6, 0.4, 0.8, 0.5]]).log(), torch.tensor([[0.5, 0.8, 0.2, 0.5]]).log()
    >>> batch = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 4))  # ratios 1.2, 0.5, 4 and 1
    >>> (kept,) = with_budget(batch, CorrectionConfig(), "token_k1", 0.5).rollout_rs
    >>> round(kept.lower, 2), round(kept.upper, 2)
    (0.83, 1.2)
    """
    number = len(correction.rollout_rs)
    bounded = replace(correction, rollout_rs=(*correction.rollout_rs, loosest(rule)))
    _, inside = _inside(batch, bounded, number)
    if float(inside[-1]) < share and not _other_bounds(batch, bounded, number):
        return correction
    return at_threshold(bounded, keep_at_least(batch, bounded, share, number), number)


def correction_named(name: str) -> CorrectionConfig:
    """A preset's correction, or of the name of a rejection rule that rule alone, as loose as `loosest`. Raises
    `UsageError` for another name.

    >>> correction_named("token_k2").rollout_rs[0].name
    'token_k2'
    """
    return CorrectionConfig(rollout_rs=(loosest(name),)) if name in RULE_NAMES else preset(name)


def loosest(rule: str) -> RejectionRule:
    """The rule of this name whose bounds reject nothing that a float can say; with both sides where the divergence has
    a direction, of rules for negative advantages the lower one alone.

    >>> loosest("token_k2").lower, loosest("seq_mean_k1_negative").upper
    (None, inf)
    """
    bounded = RejectionRule.named(rule, upper=math.exp(LARGEST))
    if bounded.divergence not in SIGNED:
        return bounded
    signed = math.exp(-LARGEST) if bounded.divergence == "k1" else -math.exp(LARGEST)
    return replace(bounded, lower=signed, upper=math.inf if bounded.applies_to == "negative" else bounded.upper)


def ess_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, rule: int | None = None) -> float:
    """Of weights the loosest threshold up to which the effective sample size of what is kept never falls below this
    share of the response tokens; of a rule, which has no weights, as `keep_at_least`. Raises as it does."""
    if moved_rule(correction, rule) is not None:
        return keep_at_least(batch, correction, share, rule)
    thresholds, metrics = _curve(batch, correction, rule)
    ess = metrics.rollout_is_eff_sample_size
    if correction.rollout_is_mode == "mask":  # a mask loses sample where it is tight, too
        enough, tried = (ess >= share).nonzero()[:, 0], f"at most {float(ess.max()):.3g}."
        place = int(enough[-1]) if len(enough) else None
    else:
        reached = int((ess >= share).long().cumprod(0).sum())
        place, tried = reached - 1 if reached else None, f"the tightest has {float(ess[0]):.3g}."
    if place is None:
        others = _other_bounds(batch, correction, rule)
        raise UsageError(f"no threshold has an effective sample size of {share:g}; {tried}{others}")
    return thresholds[place]


def sweep_of(batch: TokenBatch, correction: CorrectionConfig, rule: int | None = None) -> Sweep:
    """Of the weights alone, or of the rule with this index alone; without weights of the first rule."""
    return _sweep(batch, correction, rule, None)


def curve_of(
    sweep: Sweep,
    correction: CorrectionConfig,
    thresholds: Sequence[float],
    rule: int | None = None,
    side: Side = "band",
) -> BoundMetrics[Tensor]:
    """The metrics of a sweep at these thresholds, each put where `at_threshold` puts it."""
    bounds = [_bounds(at_threshold(correction, threshold, rule, side), rule) for threshold in thresholds]
    lower = None if bounds[0][0] is None else torch.tensor([low for low, _ in bounds], dtype=torch.float64)
    return sweep.curve(torch.tensor([high for _, high in bounds], dtype=torch.float64), lower)


def _sweep(batch: TokenBatch, correction: CorrectionConfig, rule: int | None, among: Tensor | None) -> Sweep:
    rule = moved_rule(correction, rule)
    if rule is not None:
        return sweep_rule(batch, correction.rollout_rs[rule], among=among)
    assert correction.rollout_is is not None
    return sweep_weights(batch, correction.rollout_is, correction.rollout_is_mode, among=among)


def _curve(
    batch: TokenBatch, correction: CorrectionConfig, rule: int | None
) -> tuple[list[float], BoundMetrics[Tensor]]:
    """Over one bound, among the tokens that all others keep."""
    among = batch.response_mask
    for _, passed in _passed(batch, correction, rule):
        among = among & passed
    thresholds = tight_thresholds(batch, correction, rule, TIGHT_POINTS)
    thresholds += usual_thresholds(batch, correction, rule, count=POINTS)
    return thresholds, curve_of(_sweep(batch, correction, rule, among), correction, thresholds, rule)


def _passed(batch: TokenBatch, correction: CorrectionConfig, rule: int | None) -> list[tuple[str, Tensor]]:
    """Of all bounds but the one that moves: the name, and which tokens it lets pass, (B, T)."""
    moved = moved_rule(correction, rule)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    others: list[RejectionRule] = [r for number, r in enumerate(correction.rollout_rs) if number != moved]
    passed = [(other.name, reject(batch, d, (other,)) == 0) for other in others]
    if moved is not None and correction.rollout_is is not None and correction.rollout_is_mode == "mask":
        log_w = log_weights(d, batch.response_mask, correction.rollout_is)
        lower, upper = correction.rollout_is_threshold_lower, correction.rollout_is_threshold
        passed.append(("the mask of the weights", between(log_w, lower, upper).expand_as(batch.response_mask)))
    return passed


def _other_bounds(batch: TokenBatch, correction: CorrectionConfig, rule: int | None) -> str:
    """Which of the other bounds reject tokens wherever this one is, the strictest first."""
    mask = batch.response_mask
    shares = {name: float((mask & ~passed).sum() / mask.sum()) for name, passed in _passed(batch, correction, rule)}
    strict = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    if not strict:
        return ""
    rejects = ", ".join(f"{name} rejects {shares[name]:.3g} of the tokens" for name in strict)
    return f" Wherever this bound is, {rejects}."


def _bounds(correction: CorrectionConfig, rule: int | None) -> tuple[float | None, float]:
    moved = moved_rule(correction, rule)
    if moved is None:
        return correction.rollout_is_threshold_lower, correction.rollout_is_threshold
    return correction.rollout_rs[moved].lower, correction.rollout_rs[moved].upper
