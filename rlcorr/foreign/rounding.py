"""Log-probs slightly above 0, which come from rounding in bfloat16: the exact numbers are 0 or slightly below."""

import torch

from rlcorr.foreign.columns import Column, Columns, Lists
from rlcorr.types import TokenBatch

ROUNDING = 0.125
"""Largest log-prob that counts as rounded up, and is clamped to 0 on request: the largest value that
AI-Hypercomputer/maxtext pull request 5231 reports for bfloat16. A larger one is not rounding."""


def clamp_columns(columns: Columns) -> Columns:
    """Return the columns with every log-prob in (0, `ROUNDING`] replaced by 0."""
    return {name: _clamp_column(column) if name.endswith("log_probs") else column for name, column in columns.items()}


def _clamp_column(column: Column) -> Column:
    if isinstance(column, Lists):
        return Lists(clamp_values(column.values), column.lengths, column.padded)
    return clamp_values(column) if isinstance(column, torch.Tensor) else column


def clamp_values(values: torch.Tensor) -> torch.Tensor:
    """Return the values with every one in (0, `ROUNDING`] replaced by 0.

    >>> clamp_values(torch.tensor([-1.0, 0.03125, 0.125, 0.25])).tolist()
    [-1.0, 0.0, 0.0, 0.25]
    """
    return torch.where((values > 0) & (values <= ROUNDING), 0, values)


def clamp_batch(batch: TokenBatch) -> TokenBatch:
    """Return the batch with every log-prob in (0, `ROUNDING`] replaced by 0."""
    names = [name for name in batch.tensors() if name.endswith("log_probs")]
    return batch.replace(**{name: clamp_values(batch.tensors()[name]) for name in names})
