"""What a correction gives at every value of one bound, as running sums over the values at which tokens come inside.

The bounds of a slider open from its first value to its last. A statistic that is inside once therefore stays inside,
and "inside at index k" is `k >= first`: one integer per token instead of a comparison per value.

The work is that of a few corrections, for all values together. `correct` and `measure` give the same numbers for a
single bound; the tests compare the two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.bounds import BAND, BoundId, at_threshold, resolve
from rlcorr.config import CorrectionConfig
from rlcorr.correction import importance_weights, norm_divisor, old_log_probs, require_fields
from rlcorr.errors import UsageError
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.rules import log_bounds, passes, reject, rule_statistic
from rlcorr.types import TokenBatch
from rlcorr.weights import Weights, log_bound


@dataclass(frozen=True)
class MovingBounds:
    """One bound at K slider values, from tight to loose, as logarithms if it bounds a ratio."""

    corrections: tuple[CorrectionConfig, ...]
    lower: Tensor  # (K,) float64, −inf without a lower bound
    upper: Tensor  # (K,) float64

    def first_not_above(self, statistic: Tensor) -> Tensor:
        """Return the first index whose upper bound the statistic does not exceed; K if there is none, and for NaN."""
        upper = self.upper.to(statistic.dtype)  # rounded as a comparison with the statistic rounds it
        return torch.searchsorted(upper, statistic.contiguous())

    def first_not_below(self, statistic: Tensor) -> Tensor:
        """Return the first index whose lower bound the statistic does not fall below; K if there is none."""
        lower = self.lower.to(statistic.dtype)
        return torch.searchsorted(-lower, -statistic.contiguous())

    def first_inside(self, statistic: Tensor) -> Tensor:
        """Return the first index at which the statistic is inside both bounds; K if there is none, and for NaN."""
        return torch.maximum(self.first_not_above(statistic), self.first_not_below(statistic))

    def of_weights(self) -> tuple[Tensor, Tensor]:
        """Return the lower and upper bounds of the weights, (K,) each, rounded to the float32 of the weights.

        The lower bound is 0 if there is none.
        """
        sides = [(c.rollout_is_threshold_lower or 0.0, c.rollout_is_threshold) for c in self.corrections]
        lower, upper = torch.tensor(sides).double().T
        return lower, upper


def moving_bounds(correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId) -> MovingBounds:
    """Move one bound over the slider values.

    Raises:
        UsageError: unless the values go from the tightest to the loosest, and for a value that the configuration
            refuses.
    """
    moved, index = tuple(at_threshold(correction, value, bound) for value in slider_values), bound.rule_index
    bounds = [log_bounds(c.rollout_rs[index]) if index is not None else weight_bounds(c.weights) for c in moved]
    lower, upper = torch.tensor(bounds, dtype=torch.float64).T.contiguous()
    if not (bool((upper[1:] >= upper[:-1]).all()) and bool((lower[1:] <= lower[:-1]).all())):
        raise UsageError("slider values go from the tightest bound to the loosest; these do not.")
    return MovingBounds(moved, lower, upper)


def weight_bounds(weights: Weights | None) -> tuple[float, float]:
    """Return the logarithms of the bounds of weights, −∞ without a lower one."""
    assert weights is not None
    return -math.inf if weights.lower is None else float(log_bound(weights.lower)), float(log_bound(weights.upper))


@dataclass(frozen=True)
class EntryIndex:
    """For each token the first index at which something holds, (B, T) int64; K if it never does.

    Values on padding have no meaning.
    """

    kept: Tensor
    """Every rule keeps the token."""
    not_above: Tensor
    """Its weight is not above the upper bound of the weights; 0 without weights."""
    not_below: Tensor
    """Its weight is not below the lower bound; 0 without a lower bound."""

    @property
    def inside(self) -> Tensor:
        """Return the first index at which the weight is within its bounds."""
        return torch.maximum(self.not_above, self.not_below)


def entry_index(
    batch: TokenBatch, d: Tensor, correction: CorrectionConfig, moving: MovingBounds, bound: BoundId
) -> EntryIndex:
    """Compute when each token comes inside while one bound moves and all others stay. d is the log-ratio, (B, T)."""
    mask, never, rule = batch.response_mask, len(moving.upper), bound.rule_index
    others = tuple(r for index, r in enumerate(correction.rollout_rs) if index != rule)
    kept = torch.where(reject(batch, d, others) > 0, never, 0)
    if rule is not None:
        kept = torch.maximum(kept, _rule_entries(batch, d, correction, moving, rule))
    zero = torch.zeros_like(mask, dtype=torch.long)
    if correction.weights is None:
        return EntryIndex(kept, zero, zero)
    log_w = correction.weights.raw(d, mask)
    if rule is not None:
        below, above = (outside * never for outside in correction.weights.outside(log_w))
    else:
        real = ~log_w.isnan()  # a NaN weight is neither above nor below
        above, below = (
            torch.where(real, first(log_w), 0) for first in (moving.first_not_above, moving.first_not_below)
        )
    return EntryIndex(kept, above.expand_as(mask), below.expand_as(mask))


def _rule_entries(
    batch: TokenBatch, d: Tensor, correction: CorrectionConfig, moving: MovingBounds, rule_index: int
) -> Tensor:
    """Return the first index at which the rule keeps each token, (B, T); 0 if the rule does not concern the token."""
    rule = correction.rollout_rs[rule_index]
    first = moving.first_inside(rule_statistic(rule, batch, d)).expand_as(d)
    if rule.applies_to == "all":
        return first
    # No bounds contain NaN, so a token that passes with NaN is one that the rule does not concern.
    concerned_fails = passes(rule, d.new_full((), torch.nan), batch, d)
    return torch.where(concerned_fails, 0, first)


@dataclass(frozen=True)
class WeightedItems(EntryIndex):
    """The entries of tokens or sequences, (N,) each, with their weights."""

    values: Tensor  # (N,) float64: bounded; or unbounded if the weights' own bounds move


@dataclass(frozen=True)
class WeightSums:
    """Sums of the weights of the kept items at each slider value, (K,) float64."""

    count: Tensor
    total: Tensor
    squares: Tensor


@dataclass(frozen=True)
class MovingCorrection:
    """A batch under a correction with one moving bound: what curves, bars and cells are computed from."""

    bound: BoundId
    moving: MovingBounds
    d: Tensor  # (B, T) log-ratio
    entries: EntryIndex
    weights: Tensor  # (B, T) unbounded if the weights' own bounds move, else bounded
    items: WeightedItems  # the response tokens
    sums: WeightSums  # over the response tokens
    factors: Tensor  # (K,) what batch normalisation divides the weights by


@dataclass(frozen=True)
class BoundCurve:
    """A correction at K values of one bound; all tensors (K,) float64. Means over nothing are 0."""

    thresholds: tuple[float, ...]
    numbers: dict[str, Tensor]
    """Metrics of the whole correction, by name without verl's prefix."""
    unchanged: Tensor
    """Share of the response tokens that every rule keeps and whose weight the moving bound leaves as it is. If a rule
    moves and weights outside their bounds become 0, these do not count either."""
    mean_weight: Tensor
    """Σ w / n over the n response tokens, 0 on rejected ones; before batch normalisation."""
    kept_k3: Tensor
    """Σ (r − 1 − log r) / #kept over the kept tokens."""
    kept_chi2: Tensor
    """Weights: Σ w² / #kept − 1. Rule: Σ r² / #kept − 1 with the ratios r of its kept tokens."""


def bound_curve(
    batch: TokenBatch, correction: CorrectionConfig, thresholds: Sequence[float], bound: BoundId = BAND
) -> BoundCurve:
    """Compute the correction at each threshold (`at_threshold`), from the tightest to the loosest, on the CPU.

    Raises:
        UsageError: as `correct` does, and for thresholds in another order.
    """
    batch = TokenBatch(**{name: tensor.cpu() for name, tensor in batch.tensors().items()})
    moved = moving_correction(batch, correction, thresholds, bound)
    items, positions = moved.items, len(thresholds)
    of_weights, masks = moved.bound.rule_index is None, correction.rollout_is_mode == "mask"
    first = torch.maximum(items.kept, items.inside) if of_weights or masks else items.kept
    trained = first if masks else items.kept  # the first index at which the weight is not 0
    log_r = moved.d[batch.response_mask].double()
    tokens, kept = max(len(first), 1), running(trained, positions)
    squares = moved.sums.squares if of_weights else running(trained, positions, ratio(log_r).square())
    return BoundCurve(
        thresholds=tuple(thresholds),
        numbers=headline_numbers(batch, correction, moved),
        unchanged=running(first, positions) / tokens,
        mean_weight=moved.sums.total / tokens,
        kept_k3=running(trained, positions, k3(log_r)) / kept.clamp(min=1),
        kept_chi2=torch.where(kept > 0, squares / kept.clamp(min=1) - 1, 0),
    )


def moving_correction(
    batch: TokenBatch, correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId
) -> MovingCorrection:
    """Find when each token comes inside while `bound` moves over the slider values. Raises as `bound_curve` does."""
    require_fields(batch, correction)
    bound = resolve(correction, bound)
    moving = moving_bounds(correction, slider_values, bound)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    entries = entry_index(batch, d, correction, moving, bound)
    mask, unbounded = batch.response_mask, correction.weights
    if unbounded is None or bound.rule_index is not None:
        weights = importance_weights(d, mask, correction)
    else:
        weights = ratio(unbounded.raw(d, mask)).expand_as(d)
        weights = weights.nan_to_num(0.0) if unbounded.mode == "mask" else weights
    columns = (entries.kept, entries.not_above, entries.not_below, weights.double())
    items = WeightedItems(*(x[mask] for x in columns))
    sums = weight_sums(items, moving, bound)
    factors = torch.ones(len(moving.upper), dtype=torch.float64)
    if unbounded is not None and unbounded.normalise:
        votes = sums if unbounded.per_token else _sequence_sums(batch, weights, moving, entries, bound)
        factors = norm_divisor(votes.total / votes.count.clamp(min=1))
    return MovingCorrection(bound, moving, d, entries, weights, items, sums, factors)


def running(first: Tensor, positions: int, values: Tensor | None = None) -> Tensor:
    """Sum the values of the items (or count the items) that have come in at each index: (N,) → (K,) float64."""
    counted = torch.bincount(first.clamp(max=positions), values, minlength=positions + 1)
    return counted[:positions].double().cumsum(0)


def weight_sums(items: WeightedItems, moving: MovingBounds, bound: BoundId) -> WeightSums:
    """Sum the weights of the kept items at each slider value.

    If a rule moves, these are the weights that have come in. If the weights' own bounds move, these are the weights
    inside them, and with truncation the bound itself once for each item outside.
    """
    positions = len(moving.upper)
    if bound.rule_index is not None:
        sums = (running(items.kept, positions, x) for x in (None, items.values, items.values**2))
        return WeightSums(*sums)
    kept = items.kept == 0
    values, above, below, first = (x[kept] for x in (items.values, items.not_above, items.not_below, items.inside))
    total, squares = running(first, positions, values), running(first, positions, values**2)
    if moving.corrections[0].rollout_is_mode == "truncate":
        for entered, bounds in zip((below, above), moving.of_weights(), strict=True):
            outside = len(values) - running(entered, positions)
            total, squares = total + outside * bounds, squares + outside * bounds**2
    return WeightSums(torch.full_like(total, len(values)), total, squares)


def headline_numbers(batch: TokenBatch, correction: CorrectionConfig, moved: MovingCorrection) -> dict[str, Tensor]:
    """Compute metric → value at every slider value, (K,) float64, with the names and formulas of `metrics`.

    A metric that does not move with the bound is constant. Without weights their metrics are left out.
    """
    items, entries, positions, mask = moved.items, moved.entries, len(moved.moving.upper), batch.response_mask
    tokens, sequences = max(len(items.kept), 1), max(int(mask.any(-1).sum()), 1)
    sums = moved.sums
    whole = torch.where(mask, entries.kept, 0).amax(-1)[mask.any(-1)] if mask.shape[1] else entries.kept.new_zeros(0)
    effective = sums.total.square() / (tokens * sums.squares)
    numbers = {
        "kept_fraction": running(items.kept, positions) / tokens,
        "rollout_rs_seq_masked_fraction": (len(whole) - running(whole, positions)) / sequences,
        "trained_eff_sample_size": torch.where(sums.squares == 0, 0, effective),
        "trained_is_mean": sums.total / sums.count.clamp(min=1) / moved.factors,
    }
    if correction.rollout_is is not None:
        numbers["rollout_is_oob_ratio"] = (len(items.kept) - running(items.inside, positions)) / tokens
    return numbers


def _sequence_sums(
    batch: TokenBatch, weights: Tensor, moving: MovingBounds, entries: EntryIndex, bound: BoundId
) -> WeightSums:
    """Sum the weights of the sequences that keep all their tokens, each sequence once."""
    rows = batch.response_mask.any(-1)
    kept = torch.where(batch.response_mask, entries.kept, len(moving.upper)).amin(-1)
    of_rows = weights.amax(-1).double()  # equal on all real tokens of a row; the first column may be masked, with 0
    columns = (kept, entries.not_above[:, 0], entries.not_below[:, 0], of_rows)
    return weight_sums(WeightedItems(*(x[rows] for x in columns)), moving, bound)
