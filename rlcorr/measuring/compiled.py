"""`correct` and `measure` in one pass that torch.compile fuses, for large batches under settings that stay."""

import functools
import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import decide, normalise, require
from rlcorr.errors import UsageError
from rlcorr.measuring.batch_moments import batch_moments
from rlcorr.measuring.moments import Measured
from rlcorr.measuring.sequence_moments import Named, NamedOfRule, SequenceMoments, correction_moments, pair_moments
from rlcorr.types import CorrectionResult, TokenBatch

OnePass = tuple[Tensor, Tensor, Tensor, Named, dict[str, NamedOfRule]]
"""Log-ratio, weights and the rejecting rule (B, T), and moments per sequence."""


def correct_and_measure(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, Measured]:
    """What `correct` and `measure` give, to rounding, in one pass over the batch.

    The first call for a configuration compiles, which takes seconds. Raises `UsageError` on a CPU without a C++
    compiler, and as `correct` does:

    >>> without_old = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))
    >>> correct_and_measure(without_old, CorrectionConfig())
    Traceback (most recent call last):
    rlcorr.errors.UsageError: the correction needs old_log_probs; the batch has only rollout_log_probs.
    """
    require(batch, config)
    if not can_compile(batch.response_mask.device):
        raise UsageError("the compiled pass needs a C++ compiler (g++ or clang); correct() and measure() need none.")
    d, weights, by, of_batch, of_rules = _fused()(batch, config)
    result = normalise(CorrectionResult(d, weights, batch.response_mask & (by == 0), by), config)
    return result, Measured.of(batch_moments(SequenceMoments(of_batch, of_rules), config, result.norm_factor))


def can_compile(device: torch.device) -> bool:
    """Whether the one pass can be compiled: on a CPU that takes a C++ compiler; for a GPU torch brings its own.

    >>> can_compile(torch.device("meta"))
    True
    """
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")
    return device.type != "cpu" or any(map(shutil.which, compilers))


def _one_pass(batch: TokenBatch, config: CorrectionConfig) -> OnePass:
    d, weights, by = decide(batch, config)
    result = CorrectionResult(d, weights, batch.response_mask & (by == 0), by)
    corrected = correction_moments(batch, result, config)
    return d, weights, by.to(torch.int8), pair_moments(batch, d) | corrected.of_batch, corrected.of_rules


@functools.cache
def _fused() -> Callable[..., OnePass]:
    # At its own limits the compiler splits the reductions over several loops, each reading the tokens again.
    limits = (
        "realize_reads_threshold",
        "realize_opcount_threshold",
        "cpp.max_horizontal_fusion_size",
        "max_fusion_size",
    )
    return torch.compile(_one_pass, options=dict.fromkeys(limits, 100_000))
