"""From what one can afford to the threshold: keep so many tokens, or so much of the effective sample size."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcorr.analysis.sweep import Sweep, Swept, sweep_rule, sweep_weights
from rlcorr.analysis.thresholds import Side, at_threshold, swept, usual_thresholds
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.types import TokenBatch

POINTS = 2000
"""Thresholds that are tried, evenly in the logarithm of their distance from neutral."""


def keep_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, rule: int | None = None) -> float:
    """The tightest threshold (`at_threshold`, both sides together) inside which this share of the response tokens lies:
    what a rule keeps, and of weights those that the bound leaves as they are. Raises `UsageError` where none does."""
    thresholds, found = _curve(batch, correction, rule)
    inside = found.kept_fraction if swept(correction, rule) is not None else 1 - found.oob_ratio
    enough = inside >= share
    if not bool(enough.any()):
        raise UsageError(
            f"no threshold leaves {share:g} of the tokens inside; the loosest leaves {float(inside[-1]):g}."
        )
    return thresholds[int(enough.long().argmax())]


def ess_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, rule: int | None = None) -> float:
    """Of weights the loosest threshold up to which the effective sample size never falls below this share of the
    tokens; of a rule, whose effective sample size is what it keeps, as `keep_at_least`."""
    if swept(correction, rule) is not None:
        return keep_at_least(batch, correction, share, rule)
    thresholds, found = _curve(batch, correction, rule)
    ess = found.rollout_is_eff_sample_size
    if correction.rollout_is_mode == "mask":  # a mask loses sample where it is tight, too
        enough = (ess >= share).nonzero()
        if not len(enough):
            raise UsageError(f"no threshold has an effective sample size of {share:g}; at most {float(ess.max()):.3g}.")
        return thresholds[int(enough[-1])]
    enough = (ess >= share).long().cumprod(0)
    if not bool(enough[0]):
        raise UsageError(
            f"no threshold has an effective sample size of {share:g}; the tightest has {float(ess[0]):.3g}."
        )
    return thresholds[int(enough.sum()) - 1]


def index(batch: TokenBatch, correction: CorrectionConfig, rule: int | None = None) -> Sweep:
    """The sweep of the weights, or of the rule with this index; without weights of the first."""
    rule = swept(correction, rule)
    if rule is not None:
        return sweep_rule(batch, correction.rollout_rs[rule])
    assert correction.rollout_is is not None
    return sweep_weights(batch, correction.rollout_is, correction.rollout_is_mode)


def over(
    sweep: Sweep,
    correction: CorrectionConfig,
    thresholds: Sequence[float],
    rule: int | None = None,
    side: Side = "band",
) -> Swept[Tensor]:
    """The metrics of `index` at these thresholds, each put where `at_threshold` puts it."""
    bounds = [_bounds(at_threshold(correction, threshold, rule, side), rule) for threshold in thresholds]
    lower = None if bounds[0][0] is None else torch.tensor([low for low, _ in bounds], dtype=torch.float64)
    return sweep.curve(torch.tensor([high for _, high in bounds], dtype=torch.float64), lower)


def _curve(batch: TokenBatch, correction: CorrectionConfig, rule: int | None) -> tuple[list[float], Swept[Tensor]]:
    thresholds = usual_thresholds(batch, correction, rule, count=POINTS)
    return thresholds, over(index(batch, correction, rule), correction, thresholds, rule)


def _bounds(correction: CorrectionConfig, rule: int | None) -> tuple[float | None, float]:
    part = swept(correction, rule)
    if part is None:
        return correction.rollout_is_threshold_lower, correction.rollout_is_threshold
    own = correction.rollout_rs[part]
    return own.lower, own.upper
