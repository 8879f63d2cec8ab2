"""Measurement of a correction: `measure` computes moments on the device, and `metrics.metrics` turns them into numbers.

There are two stages. One pass over the tokens computes moments per sequence (`sequence_moments`), and everything else
follows from those (`batch_moments`). The pass takes blocks of rows that fit into the cache.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct, norm_divisor, norm_factor_sums, old_log_probs, require_fields, row_blocks
from rlcorr.errors import UsageError
from rlcorr.measuring.batch_moments import batch_moments, normalised
from rlcorr.measuring.metrics import metrics
from rlcorr.measuring.moments import MomentTable, moments
from rlcorr.measuring.quantities import Quantity
from rlcorr.measuring.sequence_moments import (
    MomentsByName,
    SequenceMoments,
    concat_moments,
    correction_moments,
    pair_moments,
)
from rlcorr.ratios import log_ratio
from rlcorr.types import CorrectionResult, TokenBatch


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
    batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig, pairs: Sequence[MomentsByName] | None = None
) -> MomentTable:
    """Compute the moments (count, Σx, Σx², min, max) of all quantities that metrics read: a float64 table (names, 5).

    The table stays on the device, and tables of micro-batches merge exactly. `result` is the result of `correct` for
    this batch and configuration. `pairs` is the result of `measure_pairs` for this batch: pass it to save half of the
    work if many corrections are measured on one batch. Raises `UsageError` if old_log_probs are missing, or advantages
    although a rule reads their sign.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> measured = measure(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> measured.table[measured.names.index("d")].tolist()  # d = 0 and 2
    [2.0, 2.0, 4.0, 0.0, 2.0]
    """
    require_fields(batch, config)
    blocks = [(batch.rows(rows), result.rows(rows)) for rows in row_blocks(batch)]
    pairs = pairs or [pair_moments(block, corrected.log_ratio) for block, corrected in blocks]
    parts: list[SequenceMoments] = []
    for block_pairs, (block, corrected) in zip(pairs, blocks, strict=True):
        sequences = correction_moments(block, corrected, config)
        parts.append(SequenceMoments(block_pairs | sequences.quantities, sequences.rule_quantities))
    measured = batch_moments(concat_moments(parts), config)
    return measured if result.norm_factor is None else normalised(measured, result.norm_factor)


def measure_pairs(batch: TokenBatch) -> list[MomentsByName]:
    """Compute the moments of `measure` that do not depend on the correction, one entry per block of rows.

    Raises `UsageError` if old_log_probs are missing.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> [block["abs_d"].total.tolist() for block in measure_pairs(batch)]  # one block, one row, |d| = 0 and 2
    [[2.0]]
    """
    parts = [batch.rows(block) for block in row_blocks(batch)]
    return [
        pair_moments(part, log_ratio(old_log_probs(part), part.rollout_log_probs, part.response_mask)) for part in parts
    ]


def measure_stream(batches: Iterable[TokenBatch], config: CorrectionConfig) -> MomentTable:
    """Compute what `measure` gives for these batches as one batch, with one of them in memory at a time.

    Batch normalisation divides by the mean weight over all batches. Raises `UsageError` for the same reasons as
    `measure`, and if there are no batches.

    >>> parts = [TokenBatch.from_log_probs(-torch.ones(1, t), -torch.ones(1, t), torch.ones(1, t)) for t in (2, 5)]
    >>> numbers = metrics(measure_stream(parts, CorrectionConfig()))
    >>> numbers["rollout_corr/sequences"], numbers["rollout_corr/tokens"]
    (2.0, 7.0)
    """
    level = config.rollout_is if config.rollout_is_batch_normalize else None
    unnormalised = replace(config, rollout_is_batch_normalize=False)
    measured, sums = None, torch.zeros(2, dtype=torch.float64)  # sums: numerator and denominator of the mean weight
    for batch in batches:
        result = correct(batch, unnormalised)
        part = measure(batch, result, unnormalised)
        measured = part if measured is None else measured.merge(part)
        if level is not None:
            row_sums = norm_factor_sums(result.weights, result.keep_mask, level)
            sums += torch.stack([x.double().sum() for x in row_sums]).cpu()
    if measured is None:
        raise UsageError("there is no batch to measure.")
    if level is None:
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
    columns: MomentsByName = {}
    quantities: dict[Quantity, Tensor] = {"probs_diff": (p - q).abs(), "p": p, "q": q, "p_plus_q": p + q}
    columns |= {name: moments(x, batch.response_mask).pooled() for name, x in quantities.items()}
    return MomentTable.of(columns)


def merge(parts: Iterable[MomentTable]) -> MomentTable:
    """Return the moments of several micro-batches as one batch, exactly. Raises TypeError if there are none.

    >>> one = measure_probabilities(TokenBatch.from_log_probs(*torch.zeros(2, 1, 3), torch.ones(1, 3)))
    >>> metrics(merge([one, one])) == metrics(one), merge([one, one]).table[0, 0].item()
    (True, 6.0)
    """
    return functools.reduce(MomentTable.merge, parts)
