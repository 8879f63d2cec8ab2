"""The steps of files: rows by step, ranks merged, and on request the rows that several files have of one step."""

import heapq
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists, count_rows, leave_out, require_lists, select_rows
from rlcorr.foreign.find_columns import to_our_names
from rlcorr.foreign.names import PAIR_NAMES, RECORDED_STEP_COLUMNS
from rlcorr.foreign.parse.limits import MAX_TOKENS, Unreadable, check_limit
from rlcorr.foreign.to_record import NoTokens, to_record
from rlcorr.foreign.values import clamp_columns, whole_numbers
from rlcorr.foreign.which_tokens_count import keep_counting_tokens, leave_out_aborted, mark_unpaired
from rlcorr.records.step_files import StepRecord

# --- numbers in the names of files, and rows by step ---


_STEP = re.compile(r"(?:^|[^a-z])(?:[a-z]*step|rollout)[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK = re.compile(r"(?:^|[^a-z])rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")


def step_of_path(path: str) -> int | None:
    """Return the step in the name of a file, otherwise in that of its folder, otherwise None."""
    stem = PurePosixPath(path).stem
    return _number_in_path(_STEP, path) if _NUMBER.fullmatch(stem) is None else int(stem)


def rank_of_path(path: str) -> int | None:
    """Return the rank in the name of a file, otherwise in that of its folder, otherwise None."""
    return _number_in_path(_RANK, path)


def without_rank(path: str) -> str:
    """Return the path without the number of the rank: the same text for the files of all ranks."""
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
        return Lists(torch.cat([column.values for column in lists]), torch.cat([column.lengths for column in lists]))
    if len(texts) == len(columns):
        return [text for column in texts for text in column]
    if len(tensors) == len(columns):
        return torch.cat([tensor.flatten() for tensor in tensors]) if tensors[0].dim() else tensors[0]
    return leave_out(name, f"{name} is a list per row in one part of a step, but not in another.")


# --- columns → steps ---


@dataclass(frozen=True)
class Part:
    """The rows of one step in a file; `step` is None if neither the file nor its name has one."""

    step: int | None
    columns: Columns
    aborted: int = 0
    """Rows that `leave_out_aborted` left out of the file; those of all its steps are counted with the first part."""


@dataclass(frozen=True)
class Repairs:
    """Faults of a file that are repaired on request. Without it the file is refused."""

    nan_is_ratio_one: bool = False  # leave out tokens whose engine log-prob is NaN, see `mark_unpaired`
    clamp_rounding: bool = False  # set log-probs slightly above 0 to 0, see `clamp_columns`
    leave_out_aborted: bool = False  # leave out rows for which one side has no log-prob, see `leave_out_aborted`


def to_tokens(columns: Columns, names: Collection[str], repairs: Repairs) -> Columns:
    """Return columns, still under the file's names, under ours, with the tokens that count alone.

    Args:
        columns: the columns that were read.
        names: the names of all columns of the file.
        repairs: what is repaired, except `leave_out_aborted`.

    Raises `UsageError` if a needed column is missing or unreadable.
    """
    ours = to_our_names(columns, names)
    if repairs.nan_is_ratio_one:
        ours = mark_unpaired(ours)
    if repairs.clamp_rounding:
        ours = clamp_columns(ours)
    return keep_counting_tokens(ours, may_be_padded=not set(names) >= RECORDED_STEP_COLUMNS)


def to_parts(columns: Columns, names: Collection[str], path_step: int | None, **repairs: bool) -> list[Part]:
    """Return columns, still under the file's names, as one part per step.

    Args:
        columns, names: as in `to_tokens`, which says what is raised.
        path_step: the step in the name of the file, if it has one.
        repairs: those of `Repairs`.
    """
    asked, aborted = Repairs(**repairs), 0
    if asked.leave_out_aborted:
        columns, aborted = leave_out_aborted(columns, PAIR_NAMES)
    steps = split_by_step(to_tokens(columns, names, asked), path_step)
    return [Part(step, rows, 0 if number else aborted) for number, (step, rows) in enumerate(steps)]


def merge_parts(parts: Sequence[Part], step: int | None = None) -> StepRecord:
    """Return the rows of all parts as one step.

    A log-prob may be at most 0.01 (rounding, as in `TokenBatch.check_values`). It may be −inf; its ratio is then e^±20.

    Args:
        parts: parts of one step, for example those of its ranks.
        step: the number of the step, if it is not that of the parts.

    Raises `UsageError` for NaN in a token, −inf in both log-probs, or a needed column that cannot be used.
    """
    number = parts[0].step if step is None else step
    columns = concat_columns([part.columns for part in parts])
    columns = columns if number is None else columns | {"step": torch.tensor(number)}
    return replace(to_record(columns), aborted=sum(part.aborted for part in parts))


@contextmanager
def name_in_errors(name: str) -> Iterator[None]:
    """Put the name of the file before every `UsageError` that is raised inside."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{_file_name(name)}: {error}") from error


def _file_name(name: str) -> str:
    """Return the last part of a path, with unprintable characters escaped."""
    return repr(PurePosixPath(name.replace("\\", "/")).name[-80:])


# --- steps of several files ---


Watch = Callable[[int], object]
"""Function that is called with the size in bytes of every file that has been read."""


@dataclass(frozen=True)
class Source:
    """A file: its path, which may contain step and rank, a function that reads its parts, and its size in bytes."""

    path: str
    parts: Callable[[], Iterator[Part]]
    size: int


def read_steps(sources: Sequence[Source], watch: Watch = lambda _: None, *, join: bool = False) -> Iterator[StepRecord]:
    """Yield every step with its ranks merged.

    With `join`, all rows of a step are merged, whatever the names of their files are: shards that were cut by size, or
    a file per micro-batch. The notes of a step say so. Raises `UsageError` if a step comes twice without `join`, or one
    of its ranks is missing.
    """
    ranks_of: dict[int, set[int | None]] = {}
    groups = _groups(sources, join)
    for group in groups:
        for step, parts in _steps_of_group(group, watch):
            path = parts[0][0].path
            if step is None and len(groups) > 1:
                raise UsageError(
                    f"{path} names its step neither in a column nor in its file name, and is one of several files."
                )
            number = 1 if step is None else step
            if number in ranks_of:
                raise UsageError(
                    f"{path} is of step {number}, and so is another file, but their names do not differ by a rank. If "
                    "both hold rows of this step, as shards and micro-batches do, --join merges them."
                )
            ranks_of[number] = {rank_of_path(source.path) for source, _ in parts}
            _check_ranks(ranks_of, number)
            record = _merge_ranks(parts, number)
            if join:
                record = replace(record, notes=(*_joined([source for source, _ in parts]), *record.notes))
            parts.clear()  # frees their memory before the step is written
            yield record
            del record


def _merge_ranks(parts: Sequence[tuple[Source, Part]], step: int) -> StepRecord:
    """Return the parts of a step as one record. Raises `UsageError` with the file of a wrong row, and the row in it."""
    try:
        with name_in_errors(parts[0][0].path):
            return merge_parts([part for _, part in parts], step)
    except UsageError:
        # The error counts rows over all parts. Merging each part alone gives the row within its file.
        for source, part in parts:
            with name_in_errors(source.path), suppress(NoTokens), _name_step_in_errors(part):
                merge_parts([part], step)
        raise


@contextmanager
def _name_step_in_errors(part: Part) -> Iterator[None]:
    """Add the step to an error if the file has a column of steps, because rows are counted within the step."""
    try:
        yield
    except UsageError as error:
        if "step" not in part.columns or isinstance(error, NoTokens):
            raise
        raise UsageError(f"in its rows of step {part.step}, {error}") from error


def _check_ranks(ranks_of: dict[int, set[int | None]], step: int) -> None:
    first = next(iter(ranks_of))
    if ranks_of[first] != ranks_of[step]:
        ranks, first_ranks = (", ".join(sorted(map(str, ranks_of[n]))) for n in (step, first))
        raise UsageError(
            f"step {step} has rank {ranks}, but step {first} has rank {first_ranks}: every rank must have every step. "
            "Leave out incomplete steps."
        )


def _groups(sources: Sequence[Source], join: bool) -> list[list[Source]]:
    """Return the files of each step in the path, or with `join` false those that differ only in the rank, ascending."""
    groups: dict[Any, list[Source]] = {}
    for source in sources:
        groups.setdefault(step_of_path(source.path) if join else without_rank(source.path), []).append(source)
    return sorted(groups.values(), key=lambda group: (step_of_path(group[0].path) or 0, without_rank(group[0].path)))


def _joined(sources: Sequence[Source]) -> list[str]:
    """Return a sentence if rows of several files were joined."""
    paths = list(dict.fromkeys(source.path for source in sources))
    return [f"rows of {len(paths)} files are joined, from {paths[0]} to {paths[-1]}."] if len(paths) > 1 else []


def _steps_of_group(group: Sequence[Source], watch: Watch) -> Iterator[tuple[int | None, list[tuple[Source, Part]]]]:
    """Yield the parts of each step from all ranks. At most one step of a rank is in memory."""
    streams = [_parts_in_order(source, watch) for source in group]
    merged = heapq.merge(*streams, key=lambda pair: _sort_key(pair[1]))
    for _, pairs in itertools.groupby(merged, key=lambda pair: _sort_key(pair[1])):
        parts: list[tuple[Source, Part]] = []
        for source, part in pairs:
            parts.append((source, part))
            check_limit(
                MAX_TOKENS,
                sum(
                    len(require_lists("rollout_log_probs", part.columns["rollout_log_probs"]).values)
                    for _, part in parts
                ),
                "tokens in one step",
            )
        yield parts[0][1].step, parts


def _sort_key(part: Part) -> int:
    return -1 if part.step is None else part.step


def _parts_in_order(source: Source, watch: Watch) -> Iterator[tuple[Source, Part]]:
    last = -1
    for part in source.parts():
        if _sort_key(part) < last:
            raise UsageError(f"{source.path}: step {part.step} comes after step {last}; sort the rows by step.")
        last = _sort_key(part)
        yield source, part
    watch(source.size)
