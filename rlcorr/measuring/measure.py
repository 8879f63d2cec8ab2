"""Measurement of a correction: `measure` computes moments on the device, and `metrics.metrics` turns them into numbers.

A quantity is one number per token or per row, and how often each row counts. What is summed of it follows from the
table of metrics: a quantity has extremes only if a metric reads its largest or smallest value.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

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
from rlcorr.measuring.metric_definitions import METRICS, RULE_METRICS, largest, mean, smallest
from rlcorr.measuring.metrics import metrics
from rlcorr.measuring.moments import Moments, MomentTable, RuleKey, merge, moments, normalised, row_moments
from rlcorr.ratios import excess, k3, ratio
from rlcorr.rules import RejectionRule, inside, log_bounds, passes, rule_statistic
from rlcorr.types import CorrectionResult, TokenBatch
from rlcorr.weights import Weights, log_bound

_READ = [*METRICS.values(), *RULE_METRICS.values()]
EXTREMES = {metric.quantity for metric in _READ if metric.read in (largest, smallest)}
"""Quantities of which a metric reads the largest or the smallest value."""
SQUARES = {metric.quantity for metric in _READ if metric.read not in (largest, smallest, mean)}
"""Quantities of which a metric reads a spread or an effective sample size."""
FUSE: dict[str, str | int | bool | Callable[..., object]] = dict.fromkeys(
    ("realize_reads_threshold", "realize_opcount_threshold", "cpp.max_horizontal_fusion_size", "max_fusion_size"),
    100_000,
)
"""Options for `torch.compile(correct_and_measure, options=FUSE)`. With its default limits the compiler splits the sums
into several loops, and each reads the tokens again."""

Quantity = tuple[str | RuleKey, Tensor, Tensor, Tensor | None]
"""Name, numbers or conditions x, how often each row counts (B,), and tokens: x is (B, T) and counts where `tokens`
(B, T) is True, or x is (B,), one number per row, and `tokens` is None."""


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


def measure(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> MomentTable:
    """Compute the moments (count, Σx, Σx², min, max) of all quantities that metrics read: a float64 table (names, 5).

    The table stays on the device, and tables of micro-batches merge exactly. `result` is the result of `correct` for
    this batch and configuration. Raises `UsageError` if old_log_probs are missing, or advantages although a rule reads
    their sign.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> measured = measure(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> measured.table[measured.names.index("abs_d")].tolist()  # |d| = 0 and 2
    [2.0, 2.0, 4.0, 0.0, 2.0]
    """
    require_fields(batch, config)
    measured = merge(_measured(batch.rows(rows), result.rows(rows), config) for rows in row_blocks(batch))
    return measured if result.norm_factor is None else normalised(measured, result.norm_factor)


def correct_and_measure(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, MomentTable]:
    """Compute `correct` and `measure` in one block of rows and before batch normalisation, for `torch.compile`.

    `torch.compile(correct_and_measure, options=FUSE)` reads the tokens once. Compiling takes seconds for each
    configuration and shape. With `rollout_is_batch_normalize`, apply `normalise` and `normalised` afterwards.
    """
    result = correct_block(batch, config)
    return result, _measured(batch, result, config)


def _measured(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> MomentTable:
    """Sum the quantities one after the other, so that tensors as large as the batch are freed as soon as possible."""
    table: dict[str | RuleKey, Moments] = {}
    d = result.log_ratio
    of_batch = (_pair_quantities(batch, d), _correction_quantities(batch, result, config))
    for key, x, count, tokens in chain(*of_batch, _rule_quantities(batch, d, config.rollout_rs)):
        name = key.quantity if isinstance(key, RuleKey) else key
        if tokens is None:
            table[key] = row_moments(x, count)
        else:
            table[key] = moments(x, tokens, squares=name in SQUARES, extremes=name in EXTREMES, count=count)
    return MomentTable.pooled(table)


def _pair_quantities(batch: TokenBatch, d: Tensor) -> Iterator[Quantity]:
    """Yield the quantities that depend on the log-probs only; d (B, T) is their log-ratio, 0 on padding."""
    mask, n = batch.response_mask, count_true(batch.response_mask)
    yield "d", d, n, mask
    yield "abs_d", d.abs(), n, mask
    yield "k3", k3(d), n, mask
    yield "ratio", ratio(d), n, mask
    yield "ratio_excess", excess(d), n, mask  # r − 1, which keeps the digits of a small d
    log_probs = (x.to(d.dtype) for x in (old_log_probs(batch), batch.rollout_log_probs))
    training, rollout, gap = (-_row_mean(x, mask, n) for x in (*log_probs, d))
    once = _once(n)
    yield "seq_training_log_ppl", training, once, None
    yield "seq_rollout_log_ppl", rollout, once, None
    yield "seq_training_ppl", training.exp(), once, None
    yield "seq_rollout_ppl", rollout.exp(), once, None
    yield "seq_log_ppl_diff", gap, once, None
    yield "seq_log_ppl_abs_diff", gap.abs(), once, None
    yield "seq_ppl_ratio", gap.exp(), once, None
    yield "seq_excess", excess(-gap * n), once, None


def _correction_quantities(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> Iterator[Quantity]:
    """Yield the quantities of weights and of all rules together, as they are before batch normalisation."""
    mask, keep = batch.response_mask, result.keep_mask
    n, kept = count_true(mask), count_true(keep)
    yield "kept", keep, n, mask
    yield "rejected", ~keep, n, mask
    weights = result.weights if result.norm_factor is None else result.weights * result.norm_factor
    yield "trained", weights, kept, keep
    yield "seq_rejected", kept < n, _once(n), None
    if config.weights is not None:
        yield from _weight_quantities(result.log_ratio, mask, n, config.weights)


def _weight_quantities(d: Tensor, mask: Tensor, n: Tensor, weights: Weights) -> Iterator[Quantity]:
    """Yield the quantities of the weights. Without a lower bound, weights below 1/upper count as low, as in verl.

    Comparisons with bounds are made in the dtype in which the correction made them.
    """
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
        extreme, raw_excess, tokens = weight, excess(log_raw), mask
    else:  # a row's weight counts once for each of its tokens
        below, above, outside, weight, wide = (x[:, 0] for x in (below, above, outside, weight, log_raw.double()))
        raw = extreme = ratio(wide)
        seq, sides, raw_excess, tokens = weight, (below, above), excess(wide), None
    yield "weight", weight, n, tokens
    yield "weight_excess", weight - 1, n, tokens
    yield "extreme_weight", extreme, n, tokens  # as in verl: token weights after the bounds, sequence weights before
    yield "raw_weight", raw, n, tokens
    yield "raw_weight_excess", raw_excess, n, tokens
    yield "outside", outside, n, tokens
    yield "weight_low", below, n if weights.per_token else once, tokens
    yield "weight_high", above, n if weights.per_token else once, tokens
    yield "seq_raw_low", sides[0], once, None
    yield "seq_raw_high", sides[1], once, None
    yield "seq_weight", seq, once, None
    yield "seq_weight_deviation", (seq - 1).abs(), once, None


def _rule_quantities(batch: TokenBatch, d: Tensor, rules: tuple[RejectionRule, ...]) -> Iterator[Quantity]:
    """Yield the quantities of each rule: its statistic, and what the rule rejects alone; and those of all vetoes."""
    mask, n, vetoed = batch.response_mask, count_true(batch.response_mask), []
    once = _once(n)
    for rule in rules:
        key, statistic = partial(RuleKey, rule.name), rule_statistic(rule, batch, d)
        low, high = log_bounds(rule)
        rejected = mask & ~passes(rule, statistic, batch, d)
        if rule.level == "token":
            seq, sides, tokens = _row_mean(statistic, mask, n), n, mask
        else:
            seq = statistic = statistic[:, 0]
            sides, tokens = once, None
        yield key("statistic"), statistic, n, tokens
        yield key("clamped"), statistic.clamp(low, high), n, tokens
        yield key("low"), statistic < low, sides, tokens
        yield key("high"), statistic > high, sides, tokens
        yield key("rejected"), rejected, n, mask
        yield key("seq"), seq, once, None
        yield key("seq_deviation"), seq.abs(), once, None
        yield key("seq_low"), seq < low, once, None
        yield key("seq_high"), seq > high, once, None
        yield key("seq_rejected"), rejected.any(-1), once, None
        if rule.name in ("seq_min_k1", "seq_max_k1"):
            vetoed.append(~inside(rule, seq))
    if vetoed:
        yield "veto", torch.stack(vetoed).any(0), once, None


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
    """
    unnormalised = replace(config, rollout_is_batch_normalize=False)
    measured, sums = None, torch.zeros(2, dtype=torch.float64)  # sums: numerator and denominator of the mean weight
    for batch in batches:
        result = correct(batch, unnormalised)
        part = measure(batch, result, unnormalised)
        measured = part if measured is None else merge([measured, part])
        if config.weights is not None and config.weights.normalise:
            row_sums = norm_factor_sums(result.weights, result.keep_mask, per_token=config.weights.per_token)
            sums += torch.stack([x.double().sum() for x in row_sums]).cpu()
    if measured is None:
        raise UsageError("there is no batch to measure.")
    if not config.rollout_is_batch_normalize:
        return measured
    return normalised(measured, norm_divisor(sums[0] / sums[1].clamp(min=1)).to(measured.table.device))


def measure_probabilities(batch: TokenBatch) -> MomentTable:
    """Compute the moments of the two probabilities, in float64, for verl's metrics `training/rollout_probs_diff_*`.

    Raises `UsageError` if old_log_probs are missing.
    """
    p, q = old_log_probs(batch).double().exp(), batch.rollout_log_probs.double().exp()
    quantities = {"probs_diff": (p - q).abs(), "p": p, "q": q, "p_plus_q": p + q}
    return MomentTable.pooled({name: moments(x, batch.response_mask) for name, x in quantities.items()})
