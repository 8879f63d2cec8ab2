"""The headline numbers of a correction at every place of a slider, as differences of running sums."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import divisor, importance_weights, log_weights
from rlcorr.ratios import ratio
from rlcorr.strips.entries import Entries, Opening
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Weights:
    """Of some items, tokens or sequences: their weights, and from which place on they are kept and inside."""

    values: Tensor  # (N,) float64: bounded, or where the weights' own bounds move, unbounded
    kept: Tensor  # (N,)
    not_above: Tensor  # (N,)
    not_below: Tensor  # (N,)


@dataclass(frozen=True)
class WeightSums:
    """Over what is kept at each place, (K,) float64."""

    count: Tensor
    total: Tensor
    squares: Tensor


def running(first: Tensor, places: int, values: Tensor | None = None) -> Tensor:
    """Σ of the values, or the number, of the items that something holds for at each place: (N,) → (K,) float64.

    >>> running(torch.tensor([0, 2, 9]), 3).tolist()
    [1.0, 1.0, 2.0]
    """
    counted = torch.bincount(first.clamp(max=places), values, minlength=places + 1)
    return counted[:places].double().cumsum(0)


def token_weights(batch: TokenBatch, d: Tensor, correction: CorrectionConfig, rule: int | None) -> Tensor:
    """(B, T): as `Weights.values`, float32."""
    mask, level = batch.response_mask, correction.rollout_is
    if level is None or rule is not None:
        return importance_weights(d, mask, correction)
    weights = ratio(log_weights(d, mask, level)).expand_as(d)
    return weights.nan_to_num(0.0) if correction.rollout_is_mode == "mask" else weights


def weight_sums(items: Weights, moving: Opening, rule: int | None) -> WeightSums:
    """Where a rule moves, of the weights that come in; where the weights' own bounds do, of those inside, and for
    truncation of the bounds themselves, once for each item outside."""
    places = len(moving.upper)
    if rule is not None:
        first, values = items.kept, items.values
        return WeightSums(running(first, places), running(first, places, values), running(first, places, values**2))
    chosen = items.kept == 0
    values, above, below = (x[chosen] for x in (items.values, items.not_above, items.not_below))
    first = torch.maximum(above, below)
    total, squares = running(first, places, values), running(first, places, values**2)
    if moving.corrections[0].rollout_is_mode == "truncate":
        for side, bounds in ((above, upper_bounds(moving)), (below, lower_bounds(moving))):
            outside = len(values) - running(side, places)
            total, squares = total + outside * bounds, squares + outside * bounds**2
    return WeightSums(torch.full_like(total, len(values)), total, squares)


def upper_bounds(moving: Opening) -> Tensor:
    """(K,) of the weights, rounded as the weights are that they cut."""
    return torch.tensor([c.rollout_is_threshold for c in moving.corrections]).double()


def lower_bounds(moving: Opening) -> Tensor:
    """The same of the lower ones; 0 where there are none."""
    return torch.tensor([c.rollout_is_threshold_lower or 0.0 for c in moving.corrections]).double()


def norm_factors(
    batch: TokenBatch, weights: Tensor, correction: CorrectionConfig, moving: Opening, of: Entries, rule: int | None
) -> Tensor:
    """(K,): what batch normalisation divides by; 1 where it is off. Of sequence weights each kept sequence counts
    once."""
    if correction.rollout_is is None or not correction.rollout_is_batch_normalize:
        return torch.ones(len(moving.upper), dtype=torch.float64)
    if correction.rollout_is == "token":
        items = of_tokens(batch, weights, of)
    else:
        mask, never = batch.response_mask, len(moving.upper)
        rows = mask.any(-1)
        kept = torch.where(mask, of.kept, never).amin(-1)
        items = Weights(*(x[rows] for x in (weights[:, 0].double(), kept, of.not_above[:, 0], of.not_below[:, 0])))
    sums = weight_sums(items, moving, rule)
    return divisor(sums.total / sums.count.clamp(min=1))


def of_tokens(batch: TokenBatch, weights: Tensor, of: Entries) -> Weights:
    """The response tokens as items."""
    mask = batch.response_mask
    return Weights(weights[mask].double(), of.kept[mask], of.not_above[mask], of.not_below[mask])


def headline_numbers(
    batch: TokenBatch, items: Weights, correction: CorrectionConfig, moving: Opening, of: Entries, rule: int | None,
    factors: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """Metric → its value at every place, (K,) float64; the names and the formulas are those of `metrics`. What does not
    move with the bound is the same everywhere, and metrics of weights are left out where there are none."""
    places, mask = len(moving.upper), batch.response_mask
    tokens, sequences = max(len(items.kept), 1), max(int(mask.any(-1).sum()), 1)
    sums = weight_sums(items, moving, rule)
    whole = torch.where(mask, of.kept, 0).amax(-1)[mask.any(-1)] if mask.shape[1] else of.kept.new_zeros(0)
    effective = sums.total.square() / (tokens * sums.squares)
    numbers = {
        "kept_fraction": running(items.kept, places) / tokens,
        "rollout_rs_seq_masked_fraction": (len(whole) - running(whole, places)) / sequences,
        "trained_eff_sample_size": torch.where(sums.squares == 0, 0, effective),
        "trained_is_mean": sums.total / sums.count.clamp(min=1) / factors,
    }
    if correction.rollout_is is not None:
        inside = running(torch.maximum(items.not_above, items.not_below), places)
        numbers["rollout_is_oob_ratio"] = (len(items.kept) - inside) / tokens
    return numbers
