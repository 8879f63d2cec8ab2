"""Rows for which one side has no log-prob at all, as an answer has whose request was aborted."""

from collections.abc import Collection

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists
from rlcorr.foreign.step_numbers import select_rows


def leave_out_aborted(columns: Columns, pair: Collection[str]) -> tuple[Columns, int]:
    """Return the columns without the rows for which one side has no log-prob, and the number of these rows.

    Such a row is null, or it is empty or all NaN while the other side has numbers.

    Args:
        columns: the columns, under any names.
        pair: the names of the two log-probs.

    Raises `UsageError` if no row is left.
    """
    sides = [column for name in pair if isinstance(column := columns.get(name), Lists)]
    if not sides or len({len(side.lengths) for side in sides}) > 1:
        return columns, 0  # refused later
    empty = torch.stack([side.lengths == 0 for side in sides])
    lost = torch.stack([_is_null(side) | _is_nan(side) for side in sides]).any(0) | (empty.any(0) & ~empty.all(0))
    if bool(lost.all()):
        raise UsageError("in every row one side has no log-prob.")
    return select_rows(columns, ~lost) if bool(lost.any()) else columns, int(lost.sum())


def _is_null(side: Lists) -> Tensor:
    return torch.zeros_like(side.lengths, dtype=torch.bool) if side.null is None else side.null


def _is_nan(side: Lists) -> Tensor:
    """Return the rows that hold NaN alone, (B,); an empty row is none of them."""
    count = torch.bincount(side.rows()[~side.values.isnan()], minlength=len(side.lengths))
    return (count == 0) & (side.lengths > 0)
