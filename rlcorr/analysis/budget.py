"""Bounds for a budget: a share of the tokens to keep, or of the effective sample size.

A kept token passes every bound of the correction, not only the one that is solved for. For a whole run, bounds are
chosen on all of its steps but the last, and checked on that and on answers cut short.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlcorr.analysis.bound_curve import BoundCurve, bound_curve
from rlcorr.bounds import BAND, LARGEST, BoundId, at_threshold, is_ratio, resolve, tight_thresholds, usual_thresholds
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct, old_log_probs
from rlcorr.divergences import SIGNED
from rlcorr.errors import UsageError
from rlcorr.masked import count_true
from rlcorr.measuring.measure import evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.presets import preset
from rlcorr.rules import RULE_NAMES, RejectionRule
from rlcorr.types import TokenBatch

POINTS, TIGHT_POINTS = 2000, 500
"""Number of thresholds that are tried, evenly spaced in the logarithm of their distance from neutral: from the 5 %
closest items to the farthest, and tighter ones down to the closest item."""
DIGITS = 4
"""Significant digits of a threshold's distance from neutral, rounded so that it keeps more."""

LENGTHS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Numbers of tokens to which answers are cut."""
CUTS = 3
"""Largest number of cuts that are measured, the longest that are shorter than the longest answer."""
CLIPPED_LIMIT, ESS_LIMIT = 0.05, 0.5
"""The glossary calls a larger clipped mass, and a smaller effective sample size, bad."""


def keep_at_least(batch: TokenBatch, correction: CorrectionConfig, share: float, bound: BoundId = BAND) -> float:
    """Return the tightest threshold at which the whole correction keeps this share of the response tokens.

    If the threshold truncates weights, a token whose weight it changes does not count as kept.

    Raises:
        UsageError: if no threshold does it.
    """
    thresholds, curve = _curve(batch, correction, bound)
    inside = curve.unchanged
    enough = inside >= share
    if not bool(enough.any()):
        raise UsageError(
            f"no threshold leaves {share:g} of the tokens inside; the loosest leaves {float(inside[-1]):g}. The other "
            "bounds of the correction count, too."
        )
    return thresholds[int(enough.long().argmax())]


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
    loosest_share = float(_curve(batch, bounded, added)[1].unchanged[-1])
    others = correct(batch, correction)  # what they reject, no bound of this rule keeps
    if loosest_share < share <= float((others.keep_mask & (others.weights > 0)).sum() / batch.response_mask.sum()):
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
    """Return thresholds, the tightest first, and what the correction gives at each."""
    thresholds = tight_thresholds(batch, correction, bound, TIGHT_POINTS)
    thresholds += usual_thresholds(batch, correction, bound, count=POINTS)
    return thresholds, bound_curve(batch, correction, thresholds, bound)


# --- a whole run ---


@dataclass(frozen=True)
class Pairs:
    """Several steps of a run as one batch."""

    steps: tuple[int, ...]
    batch: TokenBatch


@dataclass(frozen=True)
class Kept:
    """What a correction keeps of a batch."""

    share: float
    """Share of the tokens that teach something: their weight is above 0 and no rule rejects them."""
    ess: float
    """Effective sample size of the kept tokens, as a share of all tokens."""
    cut: float | None
    """Share of the tokens whose weights become a bound; None if weights are not truncated."""
    clipped: float
    """Clipped mass: share of the tokens whose weights lie outside their bounds, and become a bound or 0."""
    error: float = 0.0
    """Standard error of `share`, over answers."""

    @property
    def unchanged(self) -> float:
        """Return the share of the tokens that are neither zeroed nor clipped."""
        return self.share - (self.cut or 0.0)

    @property
    def zeroed(self) -> float:
        """Return the share of the tokens that teach nothing."""
        return 1 - self.share

    @property
    def has_high_clipped(self) -> bool:
        return self.clipped > CLIPPED_LIMIT

    @property
    def has_low_ess(self) -> bool:
        return self.ess < ESS_LIMIT

    @property
    def is_bad(self) -> bool:
        return self.has_high_clipped or self.has_low_ess


def pairs_of(steps: Iterable[tuple[int, TokenBatch]], *, with_advantages: bool = False) -> tuple[Pairs, Pairs | None]:
    """Split steps, in their order, into those that bounds are chosen on and the last step, which checks them.

    With one step there is nothing to check on: the second part is None.

    Raises:
        UsageError: if some steps lack the advantages that are asked for.
    """
    numbers, batches = zip(*((number, _pairs(batch, with_advantages)) for number, batch in steps), strict=True)
    if not numbers[1:]:
        return Pairs(numbers, batches[0]), None
    return Pairs(numbers[:-1], pooled(batches[:-1])), Pairs(numbers[-1:], batches[-1])


def choose_bound(
    batch: TokenBatch, correction: CorrectionConfig, share: float, bound: BoundId
) -> tuple[float, CorrectionConfig]:
    """Return the tightest threshold that keeps this share of the tokens, with few digits, and the correction there.

    Raises as `keep_at_least` does.
    """
    threshold = rounded_up(keep_at_least(batch, correction, share, bound), correction, bound)
    return threshold, at_threshold(correction, threshold, bound)


def kept(batch: TokenBatch, correction: CorrectionConfig) -> Kept:
    """Measure what a correction keeps of a batch."""
    result, numbers = evaluate(batch, correction)
    learned = result.keep_mask & (result.weights > 0)
    clipped = numbers.get(f"{PREFIX}rollout_is_oob_ratio")
    tokens, of_answers = count_true(batch.response_mask).double(), count_true(learned).double()
    share = float(of_answers.sum() / tokens.sum())
    return Kept(
        share,
        numbers[f"{PREFIX}trained_eff_sample_size"],
        clipped if correction.rollout_is_mode == "truncate" else None,
        clipped or 0.0,
        float((of_answers - share * tokens).square().sum().sqrt() / tokens.sum()),
    )


def _pairs(batch: TokenBatch, with_advantages: bool) -> TokenBatch:
    advantages = batch.advantages if with_advantages else None
    return TokenBatch(batch.response_mask, batch.rollout_log_probs, old_log_probs(batch), advantages=advantages)


def pooled(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Concatenate the rows of several batches, padded to one width.

    >>> pooled([TokenBatch.from_log_probs(*torch.zeros(2, 1, t), torch.ones(1, t)) for t in (2, 3)]).response_mask.sum()
    tensor(5)
    """
    width = max(batch.response_mask.shape[1] for batch in batches)
    columns = [batch.tensors() for batch in batches]
    for name in columns[0]:
        if not all(name in tensors for tensors in columns):
            raise UsageError(f"{name} is in some of the steps, and not in all.")

    def filled(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, width - x.shape[1]))

    return TokenBatch(**{name: torch.cat([filled(x[name]) for x in columns]) for name in columns[0]})


def rounded_up(threshold: float, config: CorrectionConfig, bound: BoundId) -> float:
    """Round a threshold to few digits, never to a tighter one; for a ratio the digits are those of its distance from 1.

    >>> rounded_up(1.000123456, CorrectionConfig(rollout_is="token"), BoundId())
    1.0001235
    """
    offset = 1.0 if is_ratio(config, bound) and threshold > 1 else 0.0
    distance = threshold - offset
    if not 0 < distance < math.inf:
        return threshold
    unit = 10.0 ** (math.floor(math.log10(distance)) - DIGITS + 1)
    return float(f"{offset + math.ceil(distance / unit * (1 - 1e-12)) * unit:.12g}")


# --- the same answers, cut to fewer tokens: how a threshold carries over to longer ones ---


def kept_by_length(batch: TokenBatch, correction: CorrectionConfig) -> dict[int, Kept]:
    """Return number of tokens → what a correction keeps of the first so many of each answer; at last of whole answers.

    A token's own ratio does not change by the cut; products and means over an answer do. Answers that are shorter than
    the cut stay as they are.
    """
    longest = int(batch.response_mask.sum(dim=1).max())
    lengths = [length for length in LENGTHS if length < longest][-CUTS:]
    return {length: kept(cut_answers(batch, length), correction) for length in (*lengths, longest)}


def cut_answers(batch: TokenBatch, length: int) -> TokenBatch:
    """Return the batch with only the first `length` real tokens of each answer in its mask."""
    mask = batch.response_mask
    return batch.replace(response_mask=mask & (mask.cumsum(dim=1) <= length))
