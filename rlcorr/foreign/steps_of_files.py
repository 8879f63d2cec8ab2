"""The steps of several files: the ranks of each step merged, and on request any files that have rows of one step."""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from rlcorr.errors import UsageError
from rlcorr.foreign.limits import MAX_TOKENS, check_limit
from rlcorr.foreign.read_file import Part, merge_parts, name_in_errors
from rlcorr.foreign.step_numbers import count_log_probs, rank_of_path, step_of_path, without_rank
from rlcorr.foreign.to_record import NoTokens
from rlcorr.records.step_files import StepRecord

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
    groups = _group_by_step(sources) if join else _group_by_rank(sources)
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


def _group_by_rank(sources: Sequence[Source]) -> list[list[Source]]:
    """Return groups of files whose paths differ only in the rank, ordered by the step in the path."""
    groups: dict[str, list[Source]] = {}
    for source in sources:
        groups.setdefault(without_rank(source.path), []).append(source)
    numbered = [(step_of_path(path), path, group) for path, group in groups.items()]
    return [group for _, _, group in sorted(numbered, key=lambda entry: (entry[0] or 0, entry[1]))]


def _group_by_step(sources: Sequence[Source]) -> list[list[Source]]:
    """Return groups of files whose paths have the same step, ascending; those without a step come first."""
    by_step: dict[int, list[Source]] = {}
    for source in sources:
        step = step_of_path(source.path)
        by_step.setdefault(-1 if step is None else step, []).append(source)
    return [by_step[step] for step in sorted(by_step)]


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
            check_limit(MAX_TOKENS, sum(count_log_probs(part.columns) for _, part in parts), "tokens in one step")
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
