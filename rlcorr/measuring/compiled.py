"""`correct` and `measure` in one pass that torch.compile fuses, for large batches with an unchanging configuration."""

import functools
import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import normalise, require_fields, weights_and_rejections
from rlcorr.errors import UsageError
from rlcorr.measuring.batch_moments import batch_moments, normalised
from rlcorr.measuring.moments import MomentTable
from rlcorr.measuring.sequence_moments import SequenceMoments, concat_moments, correction_moments, pair_moments
from rlcorr.types import CorrectionResult, TokenBatch

FUSE: dict[str, str | int | bool | Callable[..., object]] = dict.fromkeys(
    (
        "realize_reads_threshold",
        "realize_opcount_threshold",
        "cpp.max_horizontal_fusion_size",
        "max_fusion_size",
    ),
    100_000,
)
"""Options of torch.compile. With its default limits the compiler splits the reductions into several loops, and each
reads the tokens again."""


def correct_and_measure(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, MomentTable]:
    """Compute the results of `correct` and `measure` in one pass over the batch. They are equal except for rounding.

    The first call for a configuration compiles, which takes seconds. Raises `UsageError` on a CPU without a C++
    compiler, and for the same reasons as `correct`:

    >>> without_old = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))
    >>> correct_and_measure(without_old, CorrectionConfig())
    Traceback (most recent call last):
    rlcorr.errors.UsageError: the correction needs old_log_probs; the batch has only rollout_log_probs.
    """
    require_fields(batch, config)
    if not can_compile(batch.response_mask.device):
        raise UsageError("the compiled pass needs a C++ compiler (g++ or clang); correct() and measure() need none.")
    d, weights, rejected_by, measured = _fused()(batch, config)
    keep = batch.response_mask & (rejected_by == 0)
    result = normalise(CorrectionResult(d, weights, keep, rejected_by), config)
    return result, measured if result.norm_factor is None else normalised(measured, result.norm_factor)


def can_compile(device: torch.device) -> bool:
    """Check whether the one pass can be compiled. A CPU needs a C++ compiler; for a GPU, torch includes one.

    >>> can_compile(torch.device("meta"))
    True
    """
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")
    return device.type != "cpu" or any(map(shutil.which, compilers))


def one_pass(batch: TokenBatch, config: CorrectionConfig) -> tuple[Tensor, Tensor, Tensor, MomentTable]:
    """Return the log-ratio, the weights, and the number of the rejecting rule, (B, T) each, and the moments.

    All are as they are before batch normalisation. This is a function to be fused. It returns no mask, because the
    compiler is ten times slower at writing bools.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2))
    >>> d, weights, rejected_by, measured = one_pass(batch, CorrectionConfig())
    >>> d.tolist(), dict(measured.rows())["d"][:2]
    ([[0.0, 1.0]], [2.0, 1.0])
    """
    d, weights, rejected_by = weights_and_rejections(batch, config)
    result = CorrectionResult(d, weights, batch.response_mask & (rejected_by == 0), rejected_by)
    corrected = correction_moments(batch, result, config)
    sequences = SequenceMoments(pair_moments(batch, d) | corrected.quantities, corrected.rule_quantities)
    return d, weights, rejected_by.to(torch.int8), batch_moments(concat_moments([sequences]), config)


@functools.cache
def _fused() -> Callable[..., tuple[Tensor, Tensor, Tensor, MomentTable]]:
    return torch.compile(one_pass, options=FUSE)
