"""What a correction gives at every value of one bound, as running sums over the values at which tokens come inside.

The work is that of a few corrections, for all values together. `correct` and `measure` give the same numbers for a
single bound; the tests compare the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.moving_bounds import EntryIndex, MovingBounds, entry_index, moving_bounds
from rlcorr.bounds import BAND, BoundId, resolve
from rlcorr.config import CorrectionConfig
from rlcorr.correction import importance_weights, norm_divisor, old_log_probs, require_fields
from rlcorr.ratios import k3, log_ratio, ratio
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class WeightedItems:
    """Weights of tokens or sequences, and the first index at which each item is kept and within the weights' bounds."""

    values: Tensor  # (N,) float64: bounded; or unbounded if the weights' own bounds move
    kept: Tensor  # (N,)
    not_above: Tensor  # (N,)
    not_below: Tensor  # (N,)

    @property
    def inside(self) -> Tensor:
        """Return the first index at which the weight is within its bounds, (N,)."""
        return torch.maximum(self.not_above, self.not_below)


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

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2))
    >>> curve = bound_curve(batch, CorrectionConfig(rollout_is="token"), [2.0, 4.0])  # ratios 1 and e
    >>> [round(x, 3) for x in curve.mean_weight.tolist()], curve.unchanged.tolist()
    ([1.5, 1.859], [0.5, 1.0])
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
    weights = token_weights(batch, d, correction, bound)
    mask = batch.response_mask
    columns = (entries.kept, entries.not_above, entries.not_below)
    items = WeightedItems(weights[mask].double(), *(first[mask] for first in columns))
    sums = weight_sums(items, moving, bound)
    factors = torch.ones(len(moving.upper), dtype=torch.float64)
    if correction.weights is not None and correction.weights.normalise:
        votes = sums if correction.weights.per_token else _sequence_sums(batch, weights, moving, entries, bound)
        factors = norm_divisor(votes.total / votes.count.clamp(min=1))
    return MovingCorrection(bound, moving, d, entries, weights, items, sums, factors)


def running(first: Tensor, positions: int, values: Tensor | None = None) -> Tensor:
    """Sum the values of the items (or count the items) that have come in at each index: (N,) → (K,) float64.

    >>> running(torch.tensor([0, 2, 9]), 3).tolist()
    [1.0, 1.0, 2.0]
    """
    counted = torch.bincount(first.clamp(max=positions), values, minlength=positions + 1)
    return counted[:positions].double().cumsum(0)


def token_weights(batch: TokenBatch, d: Tensor, correction: CorrectionConfig, bound: BoundId) -> Tensor:
    """Compute the weights of the tokens, (B, T): unbounded if the weights' own bounds move, else bounded."""
    mask, unbounded = batch.response_mask, correction.weights
    if unbounded is None or bound.rule_index is not None:
        return importance_weights(d, mask, correction)
    weights = ratio(unbounded.raw(d, mask)).expand_as(d)
    return weights.nan_to_num(0.0) if unbounded.mode == "mask" else weights


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
        for entered, bounds in ((above, upper_bounds(moving)), (below, lower_bounds(moving))):
            outside = len(values) - running(entered, positions)
            total, squares = total + outside * bounds, squares + outside * bounds**2
    return WeightSums(torch.full_like(total, len(values)), total, squares)


def upper_bounds(moving: MovingBounds) -> Tensor:
    """Return the upper bounds of the weights, (K,) float64, rounded to the float32 of the weights that they cut."""
    return torch.tensor([c.rollout_is_threshold for c in moving.corrections]).double()


def lower_bounds(moving: MovingBounds) -> Tensor:
    """Return the lower bounds of the weights as `upper_bounds` does; 0 if there is none."""
    return torch.tensor([c.rollout_is_threshold_lower or 0.0 for c in moving.corrections]).double()


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
    columns = (of_rows, kept, entries.not_above[:, 0], entries.not_below[:, 0])
    return weight_sums(WeightedItems(*(x[rows] for x in columns)), moving, bound)
