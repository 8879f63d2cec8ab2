"""Every metric of a correction as a curve over its threshold: sort once, then a query is a binary search.

What is indexed is a list of items, each with one number that the bounds are compared with: the tokens, for weights and
rules of tokens; the sequences that have tokens, for the others. Sorted by that number, the items inside any bounds are
a slice, and its sums are differences of prefix sums.

State: seven float64 prefix sums and the sorted statistic, 60 bytes per item (64 from float64 log-probs), and two
numbers per sequence. Indexing is O(N log N); a query is O(log N) and one comparison per sequence.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from rlcorr.analysis.sweep_items import Items, ratio_terms, rule_items, weight_items
from rlcorr.config import CorrectionConfig, WeightLevel, WeightMode
from rlcorr.correction import blocks, require
from rlcorr.errors import UsageError
from rlcorr.rejection import log_bounds
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class BoundMetrics(Generic[Number]):
    """The metrics at one pair of bounds (floats), or at K pairs (tensors (K,), float64).

    n response tokens. v is the weight that a token is trained with: w in a sweep of weights; in the sweep of a rule 1
    on the tokens that it keeps and 0 on the others. A token is kept if v ≠ 0, so truncation keeps every token. Where
    the sweep was made `among` some tokens, v is 0 on all others. What is taken over nothing is 0.
    """

    kept_fraction: Number
    """#kept / n."""
    seq_kept_fraction: Number
    """Share of the sequences with tokens that keep all of them: 1 − rollout_rs_seq_masked_fraction of the report."""
    rollout_is_mean: Number
    """Σ v / n. Of a rule this is kept_fraction."""
    rollout_is_std: Number
    """√(Σ (v − mean)² / n)."""
    rollout_is_eff_sample_size: Number
    """(Σ v)² / (n Σ v²). Of a rule this is kept_fraction."""
    fraction_high: Number
    """Share of the items above the upper bound, of all tokens or all sequences, whomever the rule applies to."""
    fraction_low: Number
    """Share of the items below the lower bound; of weights without one, below 1/upper, as in the report."""
    oob_ratio: Number
    """Share of the n tokens above or below the bounds that are given, and among those of the sweep. NaN lies on neither
    side."""
    kept_kl: Number
    """Σ −d / #kept over the kept tokens (k1, per token at every level); without bounds the report's kl."""
    kept_k3_kl: Number
    """Σ (eᵈ − 1 − d) / #kept over the kept tokens; without bounds the report's k3_kl."""
    kept_chi2: Number
    """Rule: Σ r² / #kept − 1 over the kept tokens, r per token. Weights: Σ w² / #kept − 1, at the level of w."""


@dataclass(frozen=True)
class Sweep:
    """The index. Made by `sweep_weights` or `sweep_rule`, asked by `at`, `curve` and `upper_for`."""

    bounded: CorrectionConfig | RejectionRule  # weights or a rule; the bounds that it has itself are not read
    statistic: Tensor  # (N,) ascending, without the NaN; logarithms for weights and k1
    sums: Tensor  # (7, N + 1) prefix sums: tokens in the item, then the rows of `fixed`
    fixed: Tensor  # (6,) Σ over the tokens that no bound touches: 1, d, k3, r − 1, (r − 1)², r²
    tokens: int
    items: int  # with the NaN
    lowest: Tensor  # (B,) extremes of the statistic over those tokens of a row that the bounds can drop
    highest: Tensor  # (B,)

    def at(self, upper: float = math.inf, lower: float | None = None) -> BoundMetrics[float]:
        """The metrics at these bounds, given as in `CorrectionConfig` or `RejectionRule`; none at all is allowed.

        Sums are rounded to float64 relative to themselves or, where the bounds exclude r = 1, to the sum between r = 1
        and the bounds; an infinite d in between makes kept_kl NaN. Raises `UsageError` for bounds that the
        configuration refuses.
        """
        one = self.curve(upper, lower)
        return BoundMetrics(*torch.cat([getattr(one, f.name) for f in fields(one)]).tolist())

    def curve(self, upper: Tensor | float = math.inf, lower: Tensor | float | None = None) -> BoundMetrics[Tensor]:
        """`at` for K bounds: 1-D tensors, or a tensor and a number that stays. Raises `UsageError` as `at` does."""
        pairs = [_bounds(self.bounded, *pair) for pair in _pairs(lower, upper)]
        bounds = torch.tensor(pairs, dtype=torch.float64, device=self.statistic.device).T.contiguous()  # (2, K)
        low, high = bounds.to(self.statistic.dtype)  # rounded as a comparison with the statistic rounds them
        start = torch.searchsorted(self.statistic, low)
        stop = torch.searchsorted(self.statistic, high, right=True)
        floor = -high if lower is None and isinstance(self.bounded, CorrectionConfig) else low
        below = self.sums[0, start] - self.sums[0, 0]
        above = self.sums[0, -1] - self.sums[0, stop]
        kept = self.fixed[:, None] + self.sums[1:, stop] - self.sums[1:, start]  # (6, K)
        if _truncates(self.bounded):
            kept[3:] += below * torch.stack(ratio_terms(bounds[0])) + above * torch.stack(ratio_terms(bounds[1]))
        whole = (self.lowest >= low[:, None]) & (self.highest <= high[:, None])  # (K, B)
        return BoundMetrics(
            kept_fraction=_share(kept[0], self.tokens),
            seq_kept_fraction=_share(whole.sum(1).double(), len(self.lowest)),
            **self._weights(kept),
            fraction_high=_share((len(self.statistic) - stop).double(), self.items),
            fraction_low=_share(torch.searchsorted(self.statistic, floor).double(), self.items),
            oob_ratio=_share(above + below, self.tokens),
            kept_kl=_mean(-kept[1], kept[0]),
            kept_k3_kl=_mean(kept[2], kept[0]),
            kept_chi2=_mean(2 * kept[3] + kept[4], kept[0]),
        )

    def _weights(self, kept: Tensor) -> dict[str, Tensor]:
        """Moments of v. They are taken of v − 1, so that a small mismatch keeps its digits; dropped tokens add −1."""
        count, excess, squares, second = kept[0], *kept[3:]
        if isinstance(self.bounded, RejectionRule):
            excess, squares, second = torch.zeros_like(count), torch.zeros_like(count), count
        dropped, n = self.tokens - count, max(self.tokens, 1)
        centre = (excess - dropped) / n
        variance = (squares + dropped) / n - centre.square()
        # v² has sums of its own: where every weight is tiny, 1 + 2(v − 1) + (v − 1)² has no digits left.
        effective = (count + excess).square() / (n * second)
        return {
            "rollout_is_mean": _share(count + excess, self.tokens),
            "rollout_is_std": variance.clamp(min=0).sqrt(),
            "rollout_is_eff_sample_size": torch.where(second == 0, 0, effective),
        }

    def upper_for(self, share: float) -> float:
        """The smallest upper bound that leaves at least this share of the tokens inside: a quantile of the statistic.

        There is no lower bound; `at` this one, kept_fraction ≥ share. Raises `UsageError` where no bound does it,
        because the statistic of too many tokens is NaN.
        """
        inside = (self.sums[0, 1:] - self.sums[0, 0]) / max(self.tokens, 1)
        index = int(torch.searchsorted(inside, share))
        if not share > 0 or index == len(inside):  # NaN is not above 0 either
            reachable = float(inside[-1]) if len(inside) else 0.0
            raise UsageError(f"no bound keeps the share {share}; it must be above 0 and at most {reachable:g} here.")
        value = float(self.statistic[index])
        smallest = math.nextafter(0, 1)  # bounds are positive
        if isinstance(self.bounded, RejectionRule) and self.bounded.divergence != "k1":
            return max(value, smallest)
        bound = max(math.exp(value), smallest) if value < 709 else math.inf  # e⁷¹⁰ is no float
        while math.log(bound) < value:  # exp rounded down, and the bound belongs to the inside
            bound = math.nextafter(bound, math.inf)
        return bound


def sweep_weights(
    batch: TokenBatch, level: WeightLevel, mode: WeightMode = "truncate", *, among: Tensor | None = None
) -> Sweep:
    """Index importance weights of this level, to be bounded in this mode. Nothing is normalised, and nothing rejected
    but what is not `among` these tokens, (B, T) bool.

    A NaN weight is 0 with mask; with truncate it stays NaN, and so do the metrics of weights and of what is kept.
    Truncation is exact for upper ≥ e⁻²⁰ and lower ≤ e²⁰. Raises `UsageError` if π_old is missing.
    """
    config = CorrectionConfig(rollout_is=level, rollout_is_mode=mode)
    require(batch, config)
    counted = batch.response_mask if among is None else among
    return _index(config, batch, [weight_items(batch.rows(b), counted[b], level, mode) for b in blocks(batch)])


def sweep_rule(batch: TokenBatch, rule: RejectionRule, *, among: Tensor | None = None) -> Sweep:
    """Index one rejection rule, whose bounds are not read; what is not `among` these tokens, (B, T) bool, is rejected
    at every bound, and so is a NaN statistic.

    Raises `UsageError` if π_old, or advantages that the rule asks for, are missing.
    """
    require(batch, CorrectionConfig(rollout_rs=(rule,)))
    counted = batch.response_mask if among is None else among
    return _index(rule, batch, [rule_items(batch.rows(b), counted[b], rule) for b in blocks(batch)])


# --- indexing ---


def _index(bounded: CorrectionConfig | RejectionRule, batch: TokenBatch, parts: list[Items]) -> Sweep:
    statistic = torch.cat([part.statistic for part in parts])
    sums = torch.cat([part.sums for part in parts], 1)
    fixed = torch.stack([part.fixed for part in parts]).sum(0)
    nan = statistic.isnan()
    if _truncates(bounded):  # truncation drops nothing, NaN included
        fixed += sums[1:, nan].sum(1)
    ordered, order = statistic[~nan].sort()
    sums_in_order = sums[:, (~nan).nonzero()[order, 0]]
    return Sweep(
        bounded=bounded,
        statistic=ordered,
        sums=_outward(sums_in_order, int(torch.searchsorted(ordered, 0.0))),
        fixed=fixed,
        tokens=int(batch.response_mask.sum()),
        items=len(statistic),
        lowest=torch.cat([part.lowest for part in parts]),
        highest=torch.cat([part.highest for part in parts]),
    )


def _outward(terms: Tensor, pivot: int) -> Tensor:
    """Prefix sums (7, N) → (7, N + 1) that are 0 at the pivot and grow away from it on both sides.

    The pivot is r = 1. A slice around it adds its two sides and subtracts nothing, so what lies outside of the bounds
    costs no digits, and an infinite d out there does not turn the sums inside into ∞ − ∞.
    """
    left, right = terms[:, :pivot], terms[:, pivot:]
    return torch.cat([left.flip(1).cumsum(1).flip(1).neg_(), terms.new_zeros(len(terms), 1), right.cumsum(1)], 1)


# --- asking ---


def _truncates(bounded: CorrectionConfig | RejectionRule) -> bool:
    return isinstance(bounded, CorrectionConfig) and bounded.rollout_is_mode == "truncate"


def _pairs(lower: Tensor | float | None, upper: Tensor | float) -> list[tuple[float | None, float]]:
    uppers = torch.as_tensor(upper, dtype=torch.float64).reshape(-1)
    if lower is None:
        return [(None, u) for u in uppers.tolist()]
    uppers, lowers = torch.broadcast_tensors(uppers, torch.as_tensor(lower, dtype=torch.float64))
    return list(zip(lowers.tolist(), uppers.tolist(), strict=True))


def _bounds(bounded: CorrectionConfig | RejectionRule, lower: float | None, upper: float) -> tuple[float, float]:
    """Bounds on the statistic. The configuration checks them, and its own logarithm is what correct() compares with."""
    if lower is None and upper == math.inf:
        return -math.inf, math.inf  # a rule refuses this, but it is where every curve ends
    if isinstance(bounded, RejectionRule):
        return log_bounds(replace(bounded, lower=lower, upper=upper))
    checked = replace(bounded, rollout_is_threshold_lower=lower, rollout_is_threshold=upper)
    return (-math.inf if lower is None else math.log(lower)), math.log(checked.rollout_is_threshold)


def _share(part: Tensor, whole: int) -> Tensor:
    return part / max(whole, 1)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    return torch.where(count > 0, total / count.clamp(min=1), 0)
