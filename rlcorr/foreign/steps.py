"""Which step and which rank a file is of, and columns put together and taken apart by step."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists, Unreadable
from rlcorr.foreign.names import NEEDED
from rlcorr.foreign.per_row import whole

_STEP = re.compile(r"(?:^|[^a-z])(?:[a-z]*step|rollout)[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK = re.compile(r"(?:^|[^a-z])rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")


def step_in(path: str) -> int | None:
    """What the name of a file says, or else that of its folder.

    >>> [step_in(path) for path in ("train_data_step12.jsonl", "step_3/rank_0.jsonl", "4.pt", "pairs.npz")]
    [12, 3, 4, None]
    """
    return _first(_STEP, path) if _NUMBER.fullmatch(PurePosixPath(path).stem) is None else int(PurePosixPath(path).stem)


def rank_in(path: str) -> int | None:
    """
    >>> [rank_in(path) for path in ("step_3/rank_0.jsonl", "step_3_rank1.pt", "pairs.npz")]
    [0, 1, None]
    """
    return _first(_RANK, path)


def without_rank(path: str) -> str:
    """The same for the files of all ranks.

    >>> without_rank("step_3/rank_0.jsonl")
    'step_3/rank.jsonl'
    """
    return _RANK.sub(lambda match: match[0].rstrip("0123456789").rstrip("_-"), path)


def _first(pattern: re.Pattern[str], path: str) -> int | None:
    parts = PurePosixPath(path.replace("\\", "/")).parts[-2:]
    matches = [match for part in reversed(parts) if (match := pattern.search(part))]
    return int(matches[0][1]) if matches else None


# --- by step ---


def by_step(columns: Columns, named: int | None) -> list[tuple[int | None, Columns]]:
    """The columns of each step that the column `step` says, in the order of the file; else the step that the file's
    name says. Raises `UsageError` where both say one, and not the same."""
    column = columns.get("step")
    if column is None:
        return [(named, columns)]
    values = column.values if isinstance(column, Lists) else column
    numbers = whole("step", values).flatten().unique(sorted=True)
    if not len(numbers) or int(numbers[0]) < 0:
        raise UsageError("step must be a number ≥ 0 per row.")
    if len(numbers) > 1:
        steps = _of_rows(column)
        return [(int(number), _rows(columns, steps == number)) for number in numbers]
    if named is not None and named != int(numbers[0]):
        raise UsageError(f"its name says step {named}, its column step says {int(numbers[0])}.")
    return [(int(numbers[0]), columns)]


def _of_rows(column: Column) -> Tensor:
    if isinstance(column, Lists) and bool((column.lengths == 1).all()):
        return column.values
    if not isinstance(column, Tensor) or column.dim() != 1:
        raise UsageError("step must be one number per row.")
    return column


def _rows(columns: Columns, chosen: Tensor) -> Columns:
    """The chosen rows of columns that all have a value, or a list, per row."""
    some: Columns = {}
    for name, column in columns.items():
        rows = rows_of(column, len(chosen))
        if rows != len(chosen):
            column = refused(name, f"{name} has {rows} rows, step has {len(chosen)}.")
        if isinstance(column, Unreadable):
            some[name] = column
        elif isinstance(column, Lists):
            some[name] = Lists(column.values[chosen[column.rows()]], column.lengths[chosen], column.padded)
        elif isinstance(column, list):
            some[name] = [text for text, here in zip(column, chosen.tolist(), strict=True) if here]
        else:
            some[name] = column[chosen] if column.dim() else column
    return some


def rows_of(column: Column, otherwise: int) -> int:
    """How many rows a column has; one number for the whole file, or a column that cannot be read, fits any."""
    if isinstance(column, Lists):
        return len(column.lengths)
    return (
        otherwise
        if isinstance(column, Unreadable) or (isinstance(column, Tensor) and not column.dim())
        else len(column)
    )


def refused(name: str, why: str) -> Unreadable:
    """Return why an optional column is left out. Raises `UsageError` for one that is needed."""
    if name in NEEDED:
        raise UsageError(why)
    return Unreadable(why)


# --- ranks and parts of one step ---


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts. Where one lacks a column that another has, this is left out: null rewards of all its rows
    are NaN, though. Raises `UsageError` for one that is needed."""
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: _joined(name, [_in_part(name, number, parts) for number in range(len(parts))]) for name in names}


def _in_part(name: str, number: int, parts: Sequence[Columns]) -> Column:
    part = parts[number]
    if name in part:
        return part[name]
    if name == "rewards":
        return torch.full((rows_of(part["rollout_log_probs"], 0),), torch.nan)
    return refused(name, f"{name} is not in part {number} (from 0) of the {len(parts)} parts of a step.")


def _joined(name: str, columns: list[Column]) -> Column:
    for column in columns:
        if isinstance(column, Unreadable):
            return column
    lists = [column for column in columns if isinstance(column, Lists)]
    texts = [column for column in columns if isinstance(column, list)]
    tensors = [column for column in columns if isinstance(column, Tensor)]
    if len(lists) == len(columns):
        values = torch.cat([column.values for column in lists])
        return Lists(values, torch.cat([column.lengths for column in lists]), any(column.padded for column in lists))
    if len(texts) == len(columns):
        return [text for column in texts for text in column]
    if len(tensors) == len(columns):
        return torch.cat([tensor.flatten() for tensor in tensors]) if tensors[0].dim() else tensors[0]
    return refused(name, f"{name} is a list per row in one part of a step, and no list in another.")


def numbers_in(columns: Columns) -> int:
    """How many log-probs of the engine there are, padding included."""
    column = columns["rollout_log_probs"]
    return len(column.values) if isinstance(column, Lists) else rows_of(column, 0)
