"""Log-probs a little above 0, which rounding in bfloat16 makes of numbers that are 0 or a little below."""

import torch

from rlcorr.foreign.columns import Column, Columns, Lists
from rlcorr.types import TokenBatch

ROUNDING = 0.125
"""Up to here it becomes 0 if asked for: the largest that AI-Hypercomputer/maxtext pull request 5231 reports of
bfloat16. More is no rounding."""


def with_rounding_clamped(columns: Columns) -> Columns:
    """Return the columns with 0 for every log-prob in (0, `ROUNDING`]."""
    return {name: _clamped(column) if name.endswith("log_probs") else column for name, column in columns.items()}


def _clamped(column: Column) -> Column:
    if isinstance(column, Lists):
        return Lists(rounding_clamped(column.values), column.lengths, column.padded)
    return rounding_clamped(column) if isinstance(column, torch.Tensor) else column


def rounding_clamped(values: torch.Tensor) -> torch.Tensor:
    """Return the values with 0 for every one in (0, `ROUNDING`].

    >>> rounding_clamped(torch.tensor([-1.0, 0.03125, 0.125, 0.25])).tolist()
    [-1.0, 0.0, 0.0, 0.25]
    """
    return torch.where((values > 0) & (values <= ROUNDING), 0, values)


def batch_clamped(batch: TokenBatch) -> TokenBatch:
    """Return the batch with 0 for every log-prob in (0, `ROUNDING`]."""
    names = [name for name in batch.tensors() if name.endswith("log_probs")]
    return batch.replace(**{name: rounding_clamped(batch.tensors()[name]) for name in names})
