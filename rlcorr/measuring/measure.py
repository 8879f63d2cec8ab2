"""Measurement of a correction: `measure` computes moments on the device, and `metrics.metrics` turns them into numbers.

A quantity is one number per token or per row, and how often each row counts. What is summed of it follows from the
table of metrics: a quantity has extremes only if a metric reads its largest or smallest value.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import (
    correct,
    correct_block,
    norm_divisor,
    norm_factor_sums,
    old_log_probs,
    require_fields,
    row_blocks,
)
from rlcorr.errors import UsageError
from rlcorr.masked import count_true
from rlcorr.measuring.metric_definitions import METRICS, RULE_METRICS
from rlcorr.measuring.metrics import metrics
from rlcorr.measuring.moments import Moments, MomentTable, RuleKey, merge, moments, normalised, row_moments
from rlcorr.measuring.quantities import Quantity, RuleQuantity
from rlcorr.measuring.statistics import largest, mean, smallest
from rlcorr.ratios import excess, k3, log_ratio, ratio
from rlcorr.rejection import inside, log_bounds, passes, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch
from rlcorr.weights import Weights, log_bound

_READ = [*METRICS.values(), *RULE_METRICS.values()]
EXTREMES = {metric.quantity for metric in _READ if metric.read in (largest, smallest)} | {"statistic"}
"""Quantities of which a metric reads the largest or the smallest value. `statistic` has those of "extremes"."""
SQUARES = {metric.quantity for metric in _READ if metric.read not in (largest, smallest, mean)}
"""Quantities of which a metric reads a spread or an effective sample size."""
FUSE: dict[str, str | int | bool | Callable[..., object]] = dict.fromkeys(
    ("realize_reads_threshold", "realize_opcount_threshold", "cpp.max_horizontal_fusion_size", "max_fusion_size"),
    100_000,
)
"""Options for `torch.compile(correct_and_measure, options=FUSE)`. With its default limits the compiler splits the sums
into several loops, and each reads the tokens again."""


class Numbers(NamedTuple):
    """A quantity: one number or condition per token where `tokens` is True, or per row, which counts `count` times."""

    x: Tensor  # (B, T), or (B,) per row
    count: Tensor  # (B,)
    tokens: Tensor | None = None  # (B, T) bool

    def moments(self, name: str) -> Moments:
        """Return the moments per sequence, (B,) each."""
        squares, extremes = name in SQUARES, name in EXTREMES
        if self.tokens is None:
            return row_moments(self.x, self.count)
        return moments(self.x, self.tokens, squares=squares, extremes=extremes, count=self.count)


Quantities = Iterator[tuple[Quantity, Numbers]]
"""Quantities one after the other, so that tensors as large as the batch are freed as soon as they are summed."""


def evaluate(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, dict[str, float]]:
    """Return the result of a correction and its metrics by name: `correct`, `measure` and `metrics` in one call.

    Waits for the device. Raises `UsageError` for the same reasons as `correct`.

    >>> rollout = torch.tensor([[0.5, 0.8, 0.5, 0.4]]).log()  # probabilities
    >>> old = torch.tensor([[0.6, 0.4, 0.5, 0.8]]).log()
    >>> batch = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 4))
    >>> result, numbers = evaluate(batch, CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5))
    >>> [round(w, 2) for w in result.weights[0].tolist()]
    [1.2, 0.5, 1.0, 1.5]
    >>> round(numbers["rollout_corr/rollout_is_mean"], 3)  # (1.2 + 0.5 + 1 + 1.5)/4
    1.05
    """
    result = correct(batch, config)
    return result, metrics(measure(batch, result, config))


def measure(
    batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig, pairs: MomentTable | None = None
) -> MomentTable:
    """Compute the moments (count, Σx, Σx², min, max) of all quantities that metrics read: a float64 table (names, 5).

    The table stays on the device, and tables of micro-batches merge exactly. `result` is the result of `correct` for
    this batch and configuration. `pairs` is the result of `measure_pairs` for this batch: pass it to save half of the
    work if many corrections are measured on one batch. Raises `UsageError` if old_log_probs are missing, or advantages
    although a rule reads their sign.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> measured = measure(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> measured.table[measured.names.index("abs_d")].tolist()  # |d| = 0 and 2
    [2.0, 2.0, 4.0, 0.0, 2.0]
    """
    require_fields(batch, config)
    blocks = [(batch.rows(rows), result.rows(rows)) for rows in row_blocks(batch)]
    if pairs is None:
        measured = merge(_measured(*block, config) for block in blocks)
    else:
        measured = pairs.beside(merge(_table(correction_numbers(*block, config)) for block in blocks))
    return measured if result.norm_factor is None else normalised(measured, result.norm_factor)


def measure_pairs(batch: TokenBatch) -> MomentTable:
    """Compute the moments of `measure` that do not depend on the correction.

    Raises `UsageError` if old_log_probs are missing.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> dict(measure_pairs(batch).rows())["abs_d"][1]  # |d| = 0 and 2
    2.0
    """
    parts = [batch.rows(rows) for rows in row_blocks(batch)]
    ratios = (log_ratio(old_log_probs(part), part.rollout_log_probs, part.response_mask) for part in parts)
    return merge(_table(pair_numbers(part, d)) for part, d in zip(parts, ratios, strict=True))


def correct_and_measure(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, MomentTable]:
    """Compute `correct` and `measure` in one block of rows and before batch normalisation, for `torch.compile`.

    `torch.compile(correct_and_measure, options=FUSE)` reads the tokens once. Compiling takes seconds for each
    configuration and shape. With `rollout_is_batch_normalize`, apply `normalise` and `normalised` afterwards.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> result, measured = correct_and_measure(batch, CorrectionConfig())
    >>> result.log_ratio.tolist(), dict(measured.rows())["abs_d"][1]
    ([[0.0, 2.0]], 2.0)
    """
    result = correct_block(batch, config)
    return result, _measured(batch, result, config)


def _measured(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> MomentTable:
    return _table(chain(pair_numbers(batch, result.log_ratio), correction_numbers(batch, result, config)))


def _table(quantities: Iterable[tuple[Quantity | RuleKey, Numbers]]) -> MomentTable:
    return MomentTable.pooled({key: numbers.moments(_quantity(key)) for key, numbers in quantities})


def _quantity(key: str | RuleKey) -> str:
    return key.quantity if isinstance(key, RuleKey) else key


def pair_numbers(batch: TokenBatch, d: Tensor) -> Quantities:
    """Yield the quantities that depend on the log-probs only; d (B, T) is their log-ratio, 0 on padding.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> dict(pair_numbers(batch, torch.tensor([[0.0, 2.0]])))["seq_log_ppl_diff"].x.tolist()  # −mean d
    [-1.0]
    """
    mask, n = batch.response_mask, count_true(batch.response_mask)
    yield "d", Numbers(d, n, mask)
    yield "abs_d", Numbers(d.abs(), n, mask)
    yield "k3", Numbers(k3(d), n, mask)
    yield "ratio", Numbers(ratio(d), n, mask)
    yield "ratio_excess", Numbers(excess(d), n, mask)
    log_probs = (x.to(d.dtype) for x in (old_log_probs(batch), batch.rollout_log_probs))
    training, rollout, gap = (-_row_mean(x, mask, n) for x in (*log_probs, d))
    once = _once(n)
    yield "seq_training_log_ppl", Numbers(training, once)
    yield "seq_rollout_log_ppl", Numbers(rollout, once)
    yield "seq_training_ppl", Numbers(training.exp(), once)
    yield "seq_rollout_ppl", Numbers(rollout.exp(), once)
    yield "seq_log_ppl_diff", Numbers(gap, once)
    yield "seq_log_ppl_abs_diff", Numbers(gap.abs(), once)
    yield "seq_ppl_ratio", Numbers(gap.exp(), once)
    yield "seq_excess", Numbers(excess(-gap * n), once)


def correction_numbers(
    batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig
) -> Iterator[tuple[Quantity | RuleKey, Numbers]]:
    """Yield the quantities of weights and rejections, as they are before batch normalisation.

    Comparisons with bounds are made in the dtype in which the correction made them.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> config = CorrectionConfig(rollout_is="token")  # weights of 1, and of e² cut to 2
    >>> dict(correction_numbers(batch, correct(batch, config), config))["weight"].x.tolist()
    [[1.0, 2.0]]
    """
    mask, keep, d = batch.response_mask, result.keep_mask, result.log_ratio
    n, kept = count_true(mask), count_true(keep)
    yield "kept", Numbers(keep, n, mask)
    yield "rejected", Numbers(~keep, n, mask)
    weights = result.weights if result.norm_factor is None else result.weights * result.norm_factor
    yield "trained", Numbers(weights, kept, keep)
    yield "seq_rejected", Numbers(kept < n, _once(n))
    if config.weights is not None:
        yield from _weight_numbers(d, mask, n, config.weights)
    vetoed = []
    for rule in config.rollout_rs:
        for name, numbers in _rule_numbers(rule, batch, d, n):
            yield RuleKey(rule.name, name), numbers
            if name == "seq" and rule.name in ("seq_min_k1", "seq_max_k1"):
                vetoed.append(~inside(rule, numbers.x))
    if vetoed:
        yield "veto", Numbers(torch.stack(vetoed).any(0), _once(n))


def _weight_numbers(d: Tensor, mask: Tensor, n: Tensor, weights: Weights) -> Quantities:
    """Yield the quantities of the weights. Without a lower bound, weights below 1/upper count as low, as in verl."""
    log_raw, once = weights.raw(d, mask), _once(n)
    below, above = weights.outside(log_raw)
    outside, lower = below | above, weights.lower
    if lower is None:
        lower = 1 / weights.upper
        below = log_raw < -log_bound(weights.upper)
    weight = weights.bounded(log_raw)
    if weights.per_token:
        raw = ratio(log_raw)
        seq, seq_raw = _row_mean(weight, mask, n), _row_mean(raw, mask, n)
        sides = seq_raw < lower, seq_raw > weights.upper
        extreme, raw_excess, counted = weight, excess(log_raw), mask
    else:  # a row's weight counts once for each of its tokens
        below, above, outside, weight, wide = (x[:, 0] for x in (below, above, outside, weight, log_raw.double()))
        raw = extreme = ratio(wide)
        seq, sides, raw_excess, counted = weight, (below, above), excess(wide), None
    yield "weight", Numbers(weight, n, counted)
    yield "weight_excess", Numbers(weight - 1, n, counted)
    yield "extreme_weight", Numbers(extreme, n, counted)
    yield "raw_weight", Numbers(raw, n, counted)
    yield "raw_weight_excess", Numbers(raw_excess, n, counted)
    yield "outside", Numbers(outside, n, counted)
    yield "weight_low", Numbers(below, n if weights.per_token else once, counted)
    yield "weight_high", Numbers(above, n if weights.per_token else once, counted)
    yield "seq_raw_low", Numbers(sides[0], once)
    yield "seq_raw_high", Numbers(sides[1], once)
    yield "seq_weight", Numbers(seq, once)
    yield "seq_weight_deviation", Numbers((seq - 1).abs(), once)


def _rule_numbers(
    rule: RejectionRule, batch: TokenBatch, d: Tensor, n: Tensor
) -> Iterator[tuple[RuleQuantity, Numbers]]:
    """Yield the quantities of a rule: its statistic, and what the rule rejects alone."""
    mask, once = batch.response_mask, _once(n)
    statistic = rule_statistic(rule, batch, d)
    low, high = log_bounds(rule)
    rejected = mask & ~passes(rule, statistic, batch, d)
    if rule.level == "token":
        seq, sides, counted = _row_mean(statistic, mask, n), n, mask
    else:
        seq = statistic = statistic[:, 0]
        sides, counted = once, None
    yield "statistic", Numbers(statistic, n, counted)
    yield "clamped", Numbers(statistic.clamp(low, high), n, counted)
    yield "low", Numbers(statistic < low, sides, counted)
    yield "high", Numbers(statistic > high, sides, counted)
    yield "rejected", Numbers(rejected, n, mask)
    yield "seq", Numbers(seq, once)
    yield "seq_deviation", Numbers(seq.abs(), once)
    yield "seq_low", Numbers(seq < low, once)
    yield "seq_high", Numbers(seq > high, once)
    yield "seq_rejected", Numbers(rejected.any(-1), once)


def _once(n: Tensor) -> Tensor:
    """Return how many times a sequence counts if each counts once: 1, or 0 without tokens."""
    return (n > 0).to(n.dtype)


def _row_mean(x: Tensor, mask: Tensor, n: Tensor) -> Tensor:
    """Return the mean of each row in float64, (B,); 0 for a row without tokens."""
    return torch.where(mask, x, 0).sum(-1).double() / n.clamp(min=1)


def measure_stream(batches: Iterable[TokenBatch], config: CorrectionConfig) -> MomentTable:
    """Compute what `measure` gives for these batches as one batch, with one of them in memory at a time.

    Batch normalisation divides by the mean weight over all batches. Raises `UsageError` for the same reasons as
    `measure`, and if there are no batches.

    >>> parts = [TokenBatch.from_log_probs(-torch.ones(1, t), -torch.ones(1, t), torch.ones(1, t)) for t in (2, 5)]
    >>> numbers = metrics(measure_stream(parts, CorrectionConfig()))
    >>> numbers["rollout_corr/sequences"], numbers["rollout_corr/tokens"]
    (2.0, 7.0)
    """
    normalise = config.rollout_is_batch_normalize
    unnormalised = replace(config, rollout_is_batch_normalize=False)
    measured, sums = None, torch.zeros(2, dtype=torch.float64)  # sums: numerator and denominator of the mean weight
    for batch in batches:
        result = correct(batch, unnormalised)
        part = measure(batch, result, unnormalised)
        measured = part if measured is None else measured.merge(part)
        if config.weights is not None and normalise:
            row_sums = norm_factor_sums(result.weights, result.keep_mask, per_token=config.weights.per_token)
            sums += torch.stack([x.double().sum() for x in row_sums]).cpu()
    if measured is None:
        raise UsageError("there is no batch to measure.")
    if not normalise:
        return measured
    return normalised(measured, norm_divisor(sums[0] / sums[1].clamp(min=1)).to(measured.table.device))


def measure_probabilities(batch: TokenBatch) -> MomentTable:
    """Compute the moments of the two probabilities, in float64, for verl's metrics `training/rollout_probs_diff_*`.

    Raises `UsageError` if old_log_probs are missing.

    >>> old, rollout = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.4, 0.9]]).log()
    >>> numbers = metrics(measure_probabilities(TokenBatch.from_log_probs(old, rollout, torch.ones(1, 2))))
    >>> round(numbers["training/rollout_probs_diff_max"], 3)
    0.1
    """
    p, q = old_log_probs(batch).double().exp(), batch.rollout_log_probs.double().exp()
    quantities: dict[Quantity, Tensor] = {"probs_diff": (p - q).abs(), "p": p, "q": q, "p_plus_q": p + q}
    return MomentTable.pooled({name: moments(x, batch.response_mask) for name, x in quantities.items()})
