"""Step and rank numbers in the names of files; columns split by step, and concatenated over the parts of a step."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists
from rlcorr.foreign.limits import Unreadable
from rlcorr.foreign.names import NEEDED
from rlcorr.foreign.values import whole_numbers

_STEP = re.compile(r"(?:^|[^a-z])(?:[a-z]*step|rollout)[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK = re.compile(r"(?:^|[^a-z])rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")


def step_of_path(path: str) -> int | None:
    """Return the step in the name of a file, otherwise in that of its folder, otherwise None.

    >>> [step_of_path(path) for path in ("train_data_step12.jsonl", "step_3/rank_0.jsonl", "4.pt", "pairs.npz")]
    [12, 3, 4, None]
    """
    stem = PurePosixPath(path).stem
    return _number_in_path(_STEP, path) if _NUMBER.fullmatch(stem) is None else int(stem)


def rank_of_path(path: str) -> int | None:
    """Return the rank in the name of a file, otherwise in that of its folder, otherwise None.

    >>> [rank_of_path(path) for path in ("step_3/rank_0.jsonl", "step_3_rank1.pt", "pairs.npz")]
    [0, 1, None]
    """
    return _number_in_path(_RANK, path)


def without_rank(path: str) -> str:
    """Return the path without the number of the rank: the same text for the files of all ranks.

    >>> without_rank("step_3/rank_0.jsonl")
    'step_3/rank.jsonl'
    """
    return _RANK.sub(lambda match: match[0].rstrip("0123456789").rstrip("_-"), path)


def _number_in_path(pattern: re.Pattern[str], path: str) -> int | None:
    parts = PurePosixPath(path.replace("\\", "/")).parts[-2:]
    matches = [match for part in reversed(parts) if (match := pattern.search(part))]
    return int(matches[0][1]) if matches else None


# --- by step ---


def split_by_step(columns: Columns, path_step: int | None) -> list[tuple[int | None, Columns]]:
    """Return the columns of each step in the column `step`, ascending; rows keep the order of the file.

    Without such a column all rows are of `path_step`, the step in the file's name. Raises `UsageError` if the two
    differ.
    """
    column = columns.get("step")
    if column is None:
        return [(path_step, columns)]
    values = column.values if isinstance(column, Lists) else column
    numbers = whole_numbers("step", values).flatten().unique(sorted=True)
    if not len(numbers) or int(numbers[0]) < 0:
        raise UsageError("step must be a number ≥ 0 per row.")
    if len(numbers) > 1:
        steps = _step_of_rows(column)
        return [(int(number), select_rows(columns, steps == number)) for number in numbers]
    if path_step is not None and path_step != int(numbers[0]):
        raise UsageError(f"its name has step {path_step}, but its column step has {int(numbers[0])}.")
    return [(int(numbers[0]), columns)]


def _step_of_rows(column: Column) -> Tensor:
    if isinstance(column, Lists) and bool((column.lengths == 1).all()):
        return column.values
    if not isinstance(column, Tensor) or column.dim() != 1:
        raise UsageError("step must be one number per row.")
    return column


def select_rows(columns: Columns, selected: Tensor) -> Columns:
    """Return the rows of every column at which `selected` (B,) is true.

    A number for the whole file stays. A column with another number of rows is left out.
    """
    result: Columns = {}
    for name, column in columns.items():
        rows = count_rows(column, len(selected))
        if rows != len(selected):
            column = leave_out(name, f"{name} has {rows} rows, step has {len(selected)}.")
        if isinstance(column, Unreadable):
            result[name] = column
        elif isinstance(column, Lists):
            null = None if column.null is None else column.null[selected]
            result[name] = Lists(column.values[selected[column.rows()]], column.lengths[selected], column.padded, null)
        elif isinstance(column, list):
            result[name] = [text for text, keep in zip(column, selected.tolist(), strict=True) if keep]
        else:
            result[name] = column[selected] if column.dim() else column
    return result


def count_rows(column: Column, default: int) -> int:
    """Return the number of rows of a column.

    It is `default` for one number for the whole file, and for a column that cannot be read.
    """
    if isinstance(column, Lists):
        return len(column.lengths)
    if isinstance(column, Unreadable) or (isinstance(column, Tensor) and not column.dim()):
        return default
    return len(column)


def leave_out(name: str, why: str) -> Unreadable:
    """Return an optional column as `Unreadable`. Raises `UsageError` for a needed one."""
    if name in NEEDED:
        raise UsageError(why)
    return Unreadable(why)


# --- ranks and parts of one step ---


def concat_columns(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all parts in one set of columns.

    A column that one of the parts lacks is left out; missing rewards become NaN instead. Raises `UsageError` if a
    needed column is missing in a part.
    """
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: _concat(name, [_column_of_part(name, index, parts) for index in range(len(parts))]) for name in names}


def _column_of_part(name: str, index: int, parts: Sequence[Columns]) -> Column:
    part = parts[index]
    if name in part:
        return part[name]
    if name == "rewards":
        return torch.full((count_rows(part["rollout_log_probs"], 0),), torch.nan)
    return leave_out(name, f"{name} is not in part {index} (from 0) of the {len(parts)} parts of a step.")


def _concat(name: str, columns: list[Column]) -> Column:
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
    return leave_out(name, f"{name} is a list per row in one part of a step, but not in another.")


def count_log_probs(columns: Columns) -> int:
    """Return the number of the engine's log-probs, padding included."""
    column = columns["rollout_log_probs"]
    return len(column.values) if isinstance(column, Lists) else count_rows(column, 0)
