"""Measurement of a correction: `measure` computes moments on the device, and `metrics.metrics` turns them into numbers.

A quantity is one number per token or per row, and how often each row counts. What is summed of it follows from the
table of metrics: a quantity has extremes only if a metric reads its largest or smallest value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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
from rlcorr.measuring.quantities import Quantity
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


Quantities = dict[Quantity | RuleKey, Numbers]


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
    return _table(pair_numbers(batch, result.log_ratio) | correction_numbers(batch, result, config))


def _table(quantities: Mapping[Quantity | RuleKey, Numbers]) -> MomentTable:
    named = {key: key.quantity if isinstance(key, RuleKey) else key for key in quantities}
    return MomentTable.pooled({key: numbers.moments(named[key]) for key, numbers in quantities.items()})


def pair_numbers(batch: TokenBatch, d: Tensor) -> Quantities:
    """Return the quantities that depend on the log-probs only; d (B, T) is their log-ratio, 0 on padding.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> pair_numbers(batch, torch.tensor([[0.0, 2.0]]))["seq_log_ppl_diff"].x.tolist()  # −mean d
    [-1.0]
    """
    mask, n = batch.response_mask, count_true(batch.response_mask)
    tokens = {"d": d, "abs_d": d.abs(), "k3": k3(d), "ratio": ratio(d), "ratio_excess": excess(d)}
    log_probs = (x.to(d.dtype) for x in (old_log_probs(batch), batch.rollout_log_probs))
    training, rollout, gap = (-_row_mean(x, mask, n) for x in (*log_probs, d))
    rows = {
        "seq_training_log_ppl": training,
        "seq_rollout_log_ppl": rollout,
        "seq_training_ppl": training.exp(),
        "seq_rollout_ppl": rollout.exp(),
        "seq_log_ppl_diff": gap,
        "seq_log_ppl_abs_diff": gap.abs(),
        "seq_ppl_ratio": gap.exp(),
        "seq_excess": excess(-gap * n),
    }
    return _per_token(tokens, mask, n) | _per_row(rows, _once(n))


def correction_numbers(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> Quantities:
    """Return the quantities of weights and rejections, as they are before batch normalisation.

    Comparisons with bounds are made in the dtype in which the correction made them.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> config = CorrectionConfig(rollout_is="token")  # weights of 1, and of e² cut to 2
    >>> correction_numbers(batch, correct(batch, config), config)["weight"].x.tolist()
    [[1.0, 2.0]]
    """
    mask, keep, d = batch.response_mask, result.keep_mask, result.log_ratio
    n, kept = count_true(mask), count_true(keep)
    weights = result.weights if result.norm_factor is None else result.weights * result.norm_factor
    numbers = _per_token({"kept": keep, "rejected": ~keep}, mask, n)
    numbers |= {"trained": Numbers(weights, kept, keep), "seq_rejected": Numbers(kept < n, _once(n))}
    if config.weights is not None:
        numbers |= _weight_numbers(d, mask, n, config.weights)
    for rule in config.rollout_rs:
        numbers |= _rule_numbers(rule, batch, d, n)
    vetoes = [rule for rule in config.rollout_rs if rule.name in ("seq_min_k1", "seq_max_k1")]
    if vetoes:
        outside = [~inside(rule, numbers[RuleKey(rule.name, "seq")].x) for rule in vetoes]
        numbers["veto"] = Numbers(torch.stack(outside).any(0), _once(n))
    return numbers


def _weight_numbers(d: Tensor, mask: Tensor, n: Tensor, weights: Weights) -> Quantities:
    """Return the quantities of the weights. Without a lower bound, weights below 1/upper count as low, as in verl."""
    log_raw, once = weights.raw(d, mask), _once(n)
    below, above = weights.outside(log_raw)
    outside, lower = below | above, weights.lower
    if lower is None:
        lower = 1 / weights.upper
        below = log_raw < -log_bound(weights.upper)
    weight, raw, raw_excess = weights.bounded(log_raw), ratio(log_raw), excess(log_raw)
    tokens = {
        "weight": weight, "weight_excess": weight - 1, "raw_weight": raw, "raw_weight_excess": raw_excess,
        "outside": outside,
    }  # fmt: skip
    if weights.per_token:
        seq, seq_raw = _row_mean(weight, mask, n), _row_mean(raw, mask, n)
        numbers = _per_token(tokens | {"extreme_weight": weight, "weight_low": below, "weight_high": above}, mask, n)
        sides = {"seq_raw_low": seq_raw < lower, "seq_raw_high": seq_raw > weights.upper}
    else:  # a row's weight counts once for each of its tokens
        seq, wide = weight[:, 0], log_raw[:, 0].double()
        tokens |= {"raw_weight": ratio(wide), "raw_weight_excess": excess(wide), "extreme_weight": ratio(wide)}
        numbers = _per_row({name: x.flatten() for name, x in tokens.items()}, n)
        low, high = below[:, 0], above[:, 0]
        sides = {"weight_low": low, "seq_raw_low": low, "weight_high": high, "seq_raw_high": high}
    return numbers | _per_row({"seq_weight": seq, "seq_weight_deviation": (seq - 1).abs(), **sides}, once)


def _rule_numbers(rule: RejectionRule, batch: TokenBatch, d: Tensor, n: Tensor) -> Quantities:
    """Return the quantities of a rule: its statistic, and what the rule rejects alone."""
    mask, once = batch.response_mask, _once(n)
    statistic = rule_statistic(rule, batch, d)
    low, high = log_bounds(rule)
    rejected = mask & ~passes(rule, statistic, batch, d)
    items = {"statistic": statistic, "clamped": statistic.clamp(low, high)}
    sides = {"low": statistic < low, "high": statistic > high}
    if rule.level == "token":
        seq = _row_mean(statistic, mask, n)
        numbers = _per_token(items | sides, mask, n)
    else:
        seq = statistic[:, 0]
        numbers = _per_row({name: x.flatten() for name, x in items.items()}, n)
        numbers |= _per_row({name: x.flatten() for name, x in sides.items()}, once)
    numbers |= _per_token({"rejected": rejected}, mask, n)
    rows = {"seq": seq, "seq_deviation": seq.abs(), "seq_low": seq < low, "seq_high": seq > high}
    numbers |= _per_row(rows | {"seq_rejected": rejected.any(-1)}, once)
    return {RuleKey(rule.name, name): x for name, x in numbers.items()}


def _per_token(quantities: Mapping, mask: Tensor, n: Tensor) -> dict:
    return {name: Numbers(x, n, mask) for name, x in quantities.items()}


def _per_row(quantities: Mapping, count: Tensor) -> dict:
    return {name: Numbers(x, count) for name, x in quantities.items()}


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
