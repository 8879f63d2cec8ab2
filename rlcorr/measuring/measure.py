"""What a correction did, measured: `measure` gathers moments on the device, `report.metrics` turns them into numbers.

Two stages: one pass over the tokens gives moments per sequence (`sequence_moments`), and everything else is computed
from those (`batch_moments`). Rows are taken in blocks that fit into the cache.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import blocks, correct, divisor, old_log_probs, require, weight_votes
from rlcorr.errors import UsageError
from rlcorr.measuring.batch_moments import batch_moments, normalised
from rlcorr.measuring.metrics import metrics
from rlcorr.measuring.moments import Measured, moments
from rlcorr.measuring.quantities import Quantity
from rlcorr.measuring.sequence_moments import Named, SequenceMoments, correction_moments, joined, pair_moments
from rlcorr.ratios import log_ratio
from rlcorr.types import CorrectionResult, TokenBatch


def evaluate(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, dict[str, float]]:
    """`correct`, `measure` and `metrics` in one: the result of a correction, and its metrics by name.

    Waits for the device. Raises `UsageError` as `correct` does.

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
    batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig, pairs: Sequence[Named] | None = None
) -> Measured:
    """The moments (count, Σx, Σx², min, max) of everything that the metrics read, as one float64 table (names, 5).

    `result` is what `correct` gave for this batch and configuration. Nothing leaves the device, and tables of
    micro-batches merge exactly. `pairs` is what `measure_pairs` gave for the batch: half of the work, for those who
    try many corrections on it. Raises `UsageError` without old_log_probs, or without advantages that a rule asks for.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> measured = measure(batch, correct(batch, CorrectionConfig()), CorrectionConfig())
    >>> measured.table[measured.names.index("d")].tolist()  # d = 0 and 2
    [2.0, 2.0, 4.0, 0.0, 2.0]
    """
    require(batch, config)
    rows = [(batch.rows(block), result.rows(block)) for block in blocks(batch)]
    pairs = pairs or [pair_moments(part, of_part.log_ratio) for part, of_part in rows]
    parts: list[SequenceMoments] = []
    for of_pairs, (part, of_part) in zip(pairs, rows, strict=True):
        corrected = correction_moments(part, of_part, config)
        parts.append(SequenceMoments(of_pairs | corrected.of_batch, corrected.of_rules))
    return Measured.of(batch_moments(joined(parts), config, result.norm_factor))


def measure_pairs(batch: TokenBatch) -> list[Named]:
    """What `measure` gathers whatever the correction is, block by block. Raises `UsageError` without old_log_probs.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> [block["abs_d"].total.tolist() for block in measure_pairs(batch)]  # one block, one row, |d| = 0 and 2
    [[2.0]]
    """
    parts = [batch.rows(block) for block in blocks(batch)]
    return [
        pair_moments(part, log_ratio(old_log_probs(part), part.rollout_log_probs, part.response_mask)) for part in parts
    ]


def measure_stream(batches: Iterable[TokenBatch], config: CorrectionConfig) -> Measured:
    """What `measure` gives for all these batches as one, of which only one need be in memory; batch normalisation
    divides by the mean weight over all of them. Raises `UsageError` as `measure` does, and without batches.

    >>> parts = [TokenBatch.from_log_probs(-torch.ones(1, t), -torch.ones(1, t), torch.ones(1, t)) for t in (2, 5)]
    >>> numbers = metrics(measure_stream(parts, CorrectionConfig()))
    >>> numbers["rollout_corr/sequences"], numbers["rollout_corr/tokens"]
    (2.0, 7.0)
    """
    level = config.rollout_is if config.rollout_is_batch_normalize else None
    plain = replace(config, rollout_is_batch_normalize=False)
    measured, votes = None, torch.zeros(2, dtype=torch.float64)
    for batch in batches:
        result = correct(batch, plain)
        part = measure(batch, result, plain)
        measured = part if measured is None else measured.merge(part)
        if level is not None:
            votes += torch.stack(
                [x.double().sum() for x in weight_votes(result.weights, result.keep_mask, level)]
            ).cpu()
    if measured is None:
        raise UsageError("there is no batch to measure.")
    if level is None:
        return measured
    return normalised(measured, divisor(votes[0] / votes[1].clamp(min=1)).to(measured.table.device))


def measure_probabilities(batch: TokenBatch) -> Measured:
    """Moments of the two probabilities themselves, for verl's `training/rollout_probs_diff_*`; in float64.

    Raises `UsageError` without old_log_probs.

    >>> old, rollout = torch.tensor([[0.5, 0.9]]).log(), torch.tensor([[0.4, 0.9]]).log()
    >>> numbers = metrics(measure_probabilities(TokenBatch.from_log_probs(old, rollout, torch.ones(1, 2))))
    >>> round(numbers["training/rollout_probs_diff_max"], 3)
    0.1
    """
    p, q = old_log_probs(batch).double().exp(), batch.rollout_log_probs.double().exp()
    columns: Named = {}
    quantities: dict[Quantity, Tensor] = {"probs_diff": (p - q).abs(), "p": p, "q": q, "p_plus_q": p + q}
    columns |= {name: moments(x, batch.response_mask).pooled() for name, x in quantities.items()}
    return Measured.of(columns)


def merge(parts: Iterable[Measured]) -> Measured:
    """The moments of the union of several micro-batches, exactly. Raises TypeError if there are none.

    >>> one = measure_probabilities(TokenBatch.from_log_probs(*torch.zeros(2, 1, 3), torch.ones(1, 3)))
    >>> metrics(merge([one, one])) == metrics(one), merge([one, one]).table[0, 0].item()
    (True, 6.0)
    """
    return functools.reduce(Measured.merge, parts)
