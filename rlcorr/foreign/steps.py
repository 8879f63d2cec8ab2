"""The steps of files: rows by step, ranks merged, and on request the rows that several files have of one step."""

import heapq
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.check_values import checked, clamped
from rlcorr.foreign.columns import Column, Columns, Lists, require_lists, split_rows
from rlcorr.foreign.map_names import RECORDED_STEP_COLUMNS, to_our_names
from rlcorr.foreign.parse.request import MAX_TOKENS, check_limit
from rlcorr.foreign.select_tokens import keep_counting_tokens, without_aborted
from rlcorr.foreign.to_record import to_record
from rlcorr.records.step_files import StepRecord

# --- numbers in the names of files ---


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


# --- columns → parts of steps ---

MAX_STEPS = 1000
"""Steps of a file, or of a part of a large one. More are a number per row under the name step."""


@dataclass(frozen=True)
class Part:
    """The rows of one step in a file, every value checked; `step` is None if neither the file nor its name has one."""

    step: int | None
    columns: Columns
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns of the file that are left out → why."""
    aborted: int = 0
    """Rows that `without_aborted` left out of the file; those of all its steps are counted with the first part."""


def to_tokens(
    columns: Columns, names: Collection[str], *, nan_is_ratio_one: bool = False, clamp_rounding: bool = False
) -> tuple[Columns, dict[str, str]]:
    """Return the checked numbers of the tokens that count, under our names, and why other columns are left out.

    Args:
        columns: the columns that were read, under the file's names.
        names: the names of all columns of the file.
        nan_is_ratio_one: leave out, and count, tokens whose engine log-prob is NaN, instead of refusing the file.
        clamp_rounding: set log-probs slightly above 0 to 0 (`check_values.clamped`), instead of refusing the file.

    Raises `UsageError` if a needed column is missing, unreadable or has a wrong number.
    """
    ours = to_our_names(columns, names)
    if clamp_rounding:
        ours = {name: clamped(column) if name.endswith("log_probs") else column for name, column in ours.items()}
    may_be_padded = not set(names) >= RECORDED_STEP_COLUMNS
    kept = keep_counting_tokens(ours, may_be_padded=may_be_padded, nan_is_ratio_one=nan_is_ratio_one)
    return checked(kept)


def to_parts(
    columns: Columns, names: Collection[str], path_step: int | None, *, leave_out_aborted: bool = False, **repairs: bool
) -> list[Part]:
    """Return the rows of each step in the column `step`, ascending; rows keep the order of the file.

    Args:
        columns, names: as in `to_tokens`, which says what is raised.
        path_step: the step in the name of the file, if it has one; without a column all rows are of this step. It is an
            error if the two differ.
        leave_out_aborted: leave out, and count, rows for which one side has no log-prob, instead of refusing the file.
        repairs: those of `to_tokens`.
    """
    columns, aborted = without_aborted(columns) if leave_out_aborted else (columns, 0)
    tokens, left_out = to_tokens(columns, names, **repairs)
    steps = tokens.pop("step", None)
    if not isinstance(steps, torch.Tensor):
        return [Part(path_step, tokens, left_out, aborted)]
    numbers = steps.unique(sorted=True).tolist()
    check_limit(MAX_STEPS, len(numbers), "steps in the column step (does it number the rows?)")
    if len(numbers) == 1:
        if path_step not in (None, numbers[0]):
            raise UsageError(f"its name has step {path_step}, but its column step has {numbers[0]}.")
        return [Part(numbers[0], tokens, left_out, aborted)]
    parts = [Part(number, rows, left_out) for number, rows in zip(numbers, split_rows(tokens, steps), strict=True)]
    return [replace(parts[0], aborted=aborted), *parts[1:]]


def merge_parts(parts: Sequence[Part], step: int | None = None) -> StepRecord:
    """Return the rows of all parts as one step.

    Args:
        parts: parts of one step, for example those of its ranks.
        step: the number of the step, if it is not that of the parts.

    Raises `NoTokens` if no token counts.
    """
    number = parts[0].step if step is None else step
    left_out = {name: why for part in parts for name, why in part.left_out.items()}
    columns = _concat([part.columns for part in parts], left_out)
    record = to_record(columns, 1 if number is None else number, left_out)
    return replace(record, aborted=sum(part.aborted for part in parts))


def _concat(parts: Sequence[Columns], left_out: dict[str, str]) -> Columns:
    """Return the rows of all parts in one set of columns.

    A column that one of the parts lacks is added to `left_out`. Missing rewards become NaN instead, and missing turns
    and counts 0.
    """
    if len(parts) == 1:
        return parts[0]
    whole: Columns = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        columns = [part[name] if name in part else _default(name, part) for part in parts]
        joined = _join(columns)
        if joined is not None:
            whole[name] = joined
        elif name not in left_out:
            lacking = next((i for i, column in enumerate(columns) if column is None), None)
            why = f"{name} is a list per row in one part of a step, but not in another."
            if lacking is not None:
                why = f"{name} is not in part {lacking} (from 0) of the {len(parts)} parts of a step."
            left_out[name] = why
    return whole


def _default(name: str, part: Columns) -> Column | None:
    rollout = require_lists("rollout_log_probs", part["rollout_log_probs"])
    if name == "turn_ids":
        return Lists(torch.zeros(len(rollout.values), dtype=torch.int32), rollout.lengths)
    values = {"rewards": torch.tensor(torch.nan), "unpaired_tokens": torch.tensor(0, dtype=torch.int32)}
    return values[name].repeat(len(rollout.lengths)) if name in values else None


def _join(columns: Sequence[Column | None]) -> Column | None:
    """Return the rows of all columns; None if one is missing or of another kind."""
    lists = [column for column in columns if isinstance(column, Lists)]
    texts = [column for column in columns if isinstance(column, list)]
    tensors = [column for column in columns if isinstance(column, torch.Tensor)]
    if len(lists) == len(columns):
        return Lists(torch.cat([column.values for column in lists]), torch.cat([column.lengths for column in lists]))
    if len(texts) == len(columns):
        return [text for column in texts for text in column]
    return torch.cat(tensors) if len(tensors) == len(columns) else None


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
            with name_in_errors(path):
                record = merge_parts([part for _, part in parts], number)
            paths = list(dict.fromkeys(source.path for source, _ in parts))
            if join and len(paths) > 1:
                said = f"rows of {len(paths)} files are joined, from {paths[0]} to {paths[-1]}."
                record = replace(record, notes=(said, *record.notes))
            parts.clear()  # frees their memory before the step is written
            yield record
            del record


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


def _steps_of_group(group: Sequence[Source], watch: Watch) -> Iterator[tuple[int | None, list[tuple[Source, Part]]]]:
    """Yield the parts of each step from all ranks. At most one step of a rank is in memory."""
    streams = [_parts_in_order(source, watch) for source in group]
    merged = heapq.merge(*streams, key=lambda pair: _sort_key(pair[1]))
    for _, pairs in itertools.groupby(merged, key=lambda pair: _sort_key(pair[1])):
        parts: list[tuple[Source, Part]] = []
        for source, part in pairs:
            parts.append((source, part))
            sides = [require_lists("rollout_log_probs", part.columns["rollout_log_probs"]) for _, part in parts]
            check_limit(MAX_TOKENS, sum(len(side.values) for side in sides), "tokens in one step")
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
