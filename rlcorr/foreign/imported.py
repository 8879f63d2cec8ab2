"""Files of pairs as one run: several steps, and the ranks of each put together."""

import glob
import heapq
import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_BYTES, MAX_TOKENS, at_most
from rlcorr.foreign.pairs import ENDINGS, Part, naming, parts_of_parquet, read_parts, record_of
from rlcorr.foreign.step import NoTokens
from rlcorr.foreign.steps import numbers_in, rank_in, step_in, without_rank
from rlcorr.foreign.unsaid import missing, recordable, said_of_unpaired
from rlcorr.measuring.measure import evaluate
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord

LARGE = 32 << 20
"""Bytes of a Parquet file from which on it is read in parts."""

Watch = Callable[[int], object]
"""Called with the bytes of every file that has been read."""


@dataclass(frozen=True)
class Source:
    """A file, by the path that says its step and rank, and what is in it."""

    path: str
    parts: Callable[[], Iterator[Part]]
    size: int


@dataclass(frozen=True)
class Imported:
    """What a run was made of, what some of its steps lack (a part of `ENABLES`), and what was left out of them."""

    steps: int
    responses: int
    tokens: int
    missing: dict[str, str]
    notes: tuple[str, ...] = ()
    unpaired: int = 0
    """Tokens that count and are in no number, because the engine's log-prob was NaN."""


# --- which files ---


def files_of(places: Sequence[str]) -> list[Path]:
    """Files, what is in folders and below them, and what globs match. Raises `UsageError` where there is nothing."""
    files = [file for place in places for file in _files_at(place)]
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise UsageError(f"{twice} is named twice.")
    return files


def _files_at(place: str) -> list[Path]:
    path = Path(place)
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file()]
        steps = [file for file in inside if file.parent.name == "steps"]
        if not inside:
            raise UsageError(f"{place} holds no file that ends in {', '.join(ENDINGS)}.")
        return sorted(steps if (path / "steps").is_dir() else inside)
    matches = sorted(glob.glob(place, recursive=True)) if glob.has_magic(place) else []
    if not matches:
        raise UsageError(f"{place} is neither a file nor a folder, and as a glob it matches nothing.")
    return [file for match in matches for file in _files_at(match)]


def source_of(file: Path, *, nan_is_ratio_one: bool = False, clamp_rounding: bool = False) -> Source:
    """A large Parquet file is read in parts, every other file whole. Raises `UsageError`."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error

    options = {"nan_is_ratio_one": nan_is_ratio_one, "clamp_rounding": clamp_rounding}

    def parts() -> Iterator[Part]:
        if file.suffix.lower() == ".parquet" and size > LARGE:
            with naming(file.name):
                yield from parts_of_parquet(file, **options)
        else:
            yield from read_parts(str(file), _content(file), **options)

    return Source(str(file), parts, size)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


# --- one run ---


def import_files(
    files: Sequence[Path],
    run: Path,
    *,
    nan_is_ratio_one: bool = False,
    clamp_rounding: bool = False,
    watch: Watch = lambda _: None,
) -> Imported:
    """Make a run of files. Raises `UsageError`, and leaves no run then."""
    sources = [source_of(file, nan_is_ratio_one=nan_is_ratio_one, clamp_rounding=clamp_rounding) for file in files]
    shown = files[0].name if len(files) == 1 else f"{len(files)} files, the first of which is {files[0].name}"
    return write_run(run, records_of(sources, watch), f"Imported from {shown}.")


def import_file(file: Path, run: Path) -> StepRecord:
    """Make a run of a file, and return its first step as it was recorded. Raises `UsageError`."""
    import_files([file], run)
    return runs.read_step(run, runs.list_steps(run)[0])


def write_run(run: Path, records: Iterable[StepRecord], story: str) -> Imported:
    """A complete run of these steps, with their metrics before any correction. Raises `UsageError` if one is there, and
    whatever `records` raises; the run is gone then."""
    manifest, reading = RunManifest(slug=run.name, story=story, engine="unknown"), iter(records)
    first = next(reading)  # what cannot be read makes no folder
    runs.start_run(run, manifest)
    try:
        made = summary_of(_written(run, itertools.chain([first], reading)))
        left_out = f" {said_of_unpaired(made.unpaired, made.tokens)}" if made.unpaired else ""
        runs.finish_run(run, replace(manifest, status="complete", story=story + left_out))
    except UsageError:
        shutil.rmtree(run)
        raise
    return made


def summary_of(records: Iterable[StepRecord]) -> Imported:
    """What there is in them. Raises what `records` raises."""
    steps = responses = tokens = unpaired = 0
    lacking: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for record in records:
        mask = record.batch.response_mask
        steps, responses, tokens = steps + 1, responses + len(mask), tokens + int(mask.sum())
        unpaired += record.batch.count_unpaired()
        lacking |= missing(record)
        for note in record.notes:
            notes.setdefault(note.partition(" ")[0], []).append(f"step {record.step}: {note}")
        del record, mask  # before the next one is read
    said = (first + (f" So are {len(more)} more steps." if more else "") for first, *more in notes.values())
    return Imported(steps, responses, tokens, lacking, tuple(said), unpaired)


def _written(run: Path, records: Iterable[StepRecord]) -> Iterator[StepRecord]:
    for record in records:
        write_one(run, record)
        yield record
        del record  # before the next one is read


def write_one(run: Path, record: StepRecord) -> None:
    """A step and its metrics."""
    row = evaluate(record.batch, CorrectionConfig())[1]
    if record.batch.rewards is not None:
        row["reward"] = float(record.batch.rewards.mean())
    if count := record.batch.count_unpaired():
        row["unpaired_tokens"] = count
    runs.write_step(run, recordable(record))
    runs.append_metrics(run, {"step": record.step} | {key: x for key, x in row.items() if math.isfinite(x)})


# --- files → steps ---


def records_of(sources: Sequence[Source], watch: Watch = lambda _: None) -> Iterator[StepRecord]:
    """Every step, its ranks put together. Raises `UsageError` where a step is there twice, or a rank lacks it."""
    ranks_of: dict[int, set[int | None]] = {}
    groups = _ranks_together(sources)
    for group in groups:
        for step, parts in _steps(group, watch):
            path = parts[0][0].path
            if step is None and len(groups) > 1:
                raise UsageError(f"{path} does not say its step, by a column or its name, and is one of several files.")
            number = 1 if step is None else step
            if number in ranks_of:
                raise UsageError(f"{path} is of step {number}, as another file is, and no rank tells them apart.")
            ranks_of[number] = {rank_in(source.path) for source, _ in parts}
            _same_ranks(ranks_of, number)
            yield _record(parts, number)


def _record(parts: Sequence[tuple[Source, Part]], step: int) -> StepRecord:
    """Return the parts of a step as one. Raises `UsageError` with the file of a wrong row, and the row in that file."""
    try:
        with naming(parts[0][0].path):
            return record_of([part for _, part in parts], step)
    except UsageError:
        for source, part in parts:
            with naming(source.path), suppress(NoTokens), _of_step(part):
                record_of([part], step)
        raise


@contextmanager
def _of_step(part: Part) -> Iterator[None]:
    """Rows are counted within a step, so a sentence about one names the step if the file has a column of steps."""
    try:
        yield
    except UsageError as error:
        if "step" not in part.columns or isinstance(error, NoTokens):
            raise
        raise UsageError(f"in its rows of step {part.step}, {error}") from error


def _same_ranks(ranks_of: dict[int, set[int | None]], step: int) -> None:
    first = next(iter(ranks_of))
    if ranks_of[first] != ranks_of[step]:
        there, here = (", ".join(str(rank) for rank in sorted(map(str, ranks_of[n]))) for n in (first, step))
        raise UsageError(
            f"step {step} is of rank {here}, step {first} of rank {there}: every rank must have every step; leave out "
            "the steps that are not complete."
        )


def _ranks_together(sources: Sequence[Source]) -> list[list[Source]]:
    """Files whose paths differ by the rank alone, in the order of the steps that they name."""
    groups: dict[str, list[Source]] = {}
    for source in sources:
        groups.setdefault(without_rank(source.path), []).append(source)
    numbered = [(step_in(path), path, group) for path, group in groups.items()]
    return [group for _, _, group in sorted(numbered, key=lambda entry: (entry[0] or 0, entry[1]))]


def _steps(group: Sequence[Source], watch: Watch) -> Iterator[tuple[int | None, list[tuple[Source, Part]]]]:
    """What the ranks hold of each step; of a rank, no more than a step is in memory."""
    streams = [_ascending(source, watch) for source in group]
    merged = heapq.merge(*streams, key=lambda pair: _number(pair[1]))
    for _, pairs in itertools.groupby(merged, key=lambda pair: _number(pair[1])):
        parts: list[tuple[Source, Part]] = []
        for source, part in pairs:
            parts.append((source, part))
            at_most(MAX_TOKENS, sum(numbers_in(part.columns) for _, part in parts), "tokens in one step")
        yield parts[0][1].step, parts


def _number(part: Part) -> int:
    return -1 if part.step is None else part.step


def _ascending(source: Source, watch: Watch) -> Iterator[tuple[Source, Part]]:
    last = -1
    for part in source.parts():
        if _number(part) < last:
            raise UsageError(f"{source.path}: step {part.step} stands after step {last}; sort the rows by step.")
        last = _number(part)
        yield source, part
    watch(source.size)
