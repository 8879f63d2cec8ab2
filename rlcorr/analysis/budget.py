"""Find the threshold for a budget: a share of tokens to keep, or of the effective sample size.

A kept token passes every bound of the correction, not only the one that is solved for.
"""

import math
from dataclasses import replace

from torch import Tensor

from rlcorr.analysis.bound_curve import BoundCurve, bound_curve
from rlcorr.bounds import BAND, LARGEST, BoundId, at_threshold, resolve, tight_thresholds, usual_thresholds
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.divergences import SIGNED
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.rules import RULE_NAMES, RejectionRule
from rlcorr.types import TokenBatch

POINTS, TIGHT_POINTS = 2000, 500
"""Number of thresholds that are tried, evenly spaced in the logarithm of their distance from neutral: from the 5 %
closest items to the farthest, and tighter ones down to the closest item."""


def keep_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, bound: BoundId = BAND) -> float:
    """Return the tightest threshold at which the whole correction keeps this share of the response tokens.

    If the threshold truncates weights, a token whose weight it changes does not count as kept.

    Raises:
        UsageError: if no threshold does it.
    """
    thresholds, inside = _inside(batch, correction, bound)
    enough = inside >= share
    if not bool(enough.any()):
        raise UsageError(
            f"no threshold leaves {share:g} of the tokens inside; the loosest leaves {float(inside[-1]):g}. The other "
            "bounds of the correction count, too."
        )
    return thresholds[int(enough.long().argmax())]


def _inside(batch: TokenBatch, correction: CorrectionConfig, bound: BoundId) -> tuple[list[float], Tensor]:
    """Return thresholds, the tightest first, and the share of the response tokens that each keeps unchanged."""
    thresholds, curve = _curve(batch, correction, bound)
    return thresholds, curve.unchanged


def with_budget(batch: TokenBatch, correction: CorrectionConfig, rule: str, share: float) -> CorrectionConfig:
    """Add a rejection rule at the tightest bound at which this share of the batch's tokens is kept.

    The bound is one number for both sides if the divergence has a direction; rules for negative advantages get the
    lower side alone, as in OPSM. The rule is left out if no bound within the range of floats keeps so much: the ratio
    of a long answer may be e^-1000. Otherwise raises as `keep_at_least` does.

    >>> old, rollout = torch.tensor([[0.6, 0.4, 0.8, 0.5]]).log(), torch.tensor([[0.5, 0.8, 0.2, 0.5]]).log()
    >>> batch = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 4))  # ratios 1.2, 0.5, 4 and 1
    >>> (kept,) = with_budget(batch, CorrectionConfig(), "token_k1", 0.5).rollout_rs
    >>> round(kept.lower, 2), round(kept.upper, 2)
    (0.83, 1.2)
    """
    added = BoundId(len(correction.rollout_rs))
    bounded = replace(correction, rollout_rs=(*correction.rollout_rs, loosest(rule)))
    _, inside = _inside(batch, bounded, added)
    others = correct(batch, correction)  # what they reject, no bound of this rule keeps
    if float(inside[-1]) < share <= float((others.keep_mask & (others.weights > 0)).sum() / batch.response_mask.sum()):
        return correction
    return at_threshold(bounded, keep_at_least(batch, bounded, share, added), added)


def correction_named(name: str) -> CorrectionConfig:
    """Return a preset's correction, or for the name of a rejection rule that rule alone with the bounds of `loosest`.

    Raises `UsageError` for another name.
    """
    return CorrectionConfig(rollout_rs=(loosest(name),)) if name in RULE_NAMES else preset(name)


def loosest(rule: str) -> RejectionRule:
    """Return the rule of this name with bounds so loose that they reject no ratio within the range of floats.

    It has both sides if the divergence has a direction; rules for negative advantages have the lower side alone.

    >>> loosest("token_k2").lower, loosest("seq_mean_k1_negative").upper
    (None, inf)
    """
    bounded = RejectionRule.named(rule, upper=math.exp(LARGEST))
    if bounded.divergence not in SIGNED:
        return bounded
    signed = math.exp(-LARGEST) if bounded.divergence == "k1" else -math.exp(LARGEST)
    return replace(bounded, lower=signed, upper=math.inf if bounded.applies_to == "negative" else bounded.upper)


def ess_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, bound: BoundId = BAND) -> float:
    """Return the loosest threshold of the weights at which the effective sample size is at least `share`.

    The effective sample size (ESS) is that of the kept tokens, as a share of all response tokens. It must be at least
    `share` at every tighter threshold, too: the ESS need not fall steadily as the threshold rises. For a rule, which
    has no weights, this is `keep_at_least`. Raises as it does.
    """
    if resolve(correction, bound).rule_index is not None:
        return keep_at_least(batch, correction, share, bound)
    thresholds, curve = _curve(batch, correction, bound)
    ess = curve.numbers["trained_eff_sample_size"]
    if correction.rollout_is_mode == "mask":  # a mask loses sample where it is tight, too
        enough, tried = (ess >= share).nonzero()[:, 0], f"at most {float(ess.max()):.3g}."
        place = int(enough[-1]) if len(enough) else None
    else:
        reached = int((ess >= share).long().cumprod(0).sum())
        place, tried = reached - 1 if reached else None, f"the tightest has {float(ess[0]):.3g}."
    if place is None:
        raise UsageError(f"no threshold has an effective sample size of {share:g}; {tried}")
    return thresholds[place]


def _curve(batch: TokenBatch, correction: CorrectionConfig, bound: BoundId) -> tuple[list[float], BoundCurve]:
    thresholds = tight_thresholds(batch, correction, bound, TIGHT_POINTS)
    thresholds += usual_thresholds(batch, correction, bound, count=POINTS)
    return thresholds, bound_curve(batch, correction, thresholds, bound)
