"""Files of pairs imported as one run: the files of several steps, and the ranks of each step merged."""

import glob
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.foreign.columns import MAX_BYTES, MAX_TOKENS, check_limit
from rlcorr.foreign.missing_fields import fill_missing, missing, unpaired_sentence
from rlcorr.foreign.read_file import ENDINGS, Part, merge_parts, name_in_errors, read_parquet_parts, read_parts
from rlcorr.foreign.step_numbers import count_log_probs, rank_of_path, step_of_path, without_rank
from rlcorr.foreign.to_record import NoTokens
from rlcorr.measuring.measure import evaluate
from rlcorr.records import runs
from rlcorr.records.run_folders import whole_directory
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord

LARGE = 32 << 20
"""A Parquet file with more bytes than this is read in parts."""

Watch = Callable[[int], object]
"""Function that is called with the size in bytes of every file that has been read."""


@dataclass(frozen=True)
class Source:
    """A file: its path, which may contain step and rank, a function that reads its parts, and its size in bytes."""

    path: str
    parts: Callable[[], Iterator[Part]]
    size: int


@dataclass(frozen=True)
class ImportSummary:
    """Contents of an imported run, the fields that some of its steps lack (of `ENABLES`), and what was left out."""

    steps: int
    responses: int
    tokens: int
    missing: dict[str, str]
    notes: tuple[str, ...] = ()
    unpaired: int = 0
    """Tokens that count but are left out of every number, because the engine's log-prob was NaN."""


# --- finding files ---


def find_files(paths: Sequence[str]) -> list[Path]:
    """Return the files named by paths, all files in folders and their subfolders, and all matches of globs.

    Raises `UsageError` if one of the paths gives no file, or a file is named twice.
    """
    files = [file for path in paths for file in _matching_files(path)]
    if len(set(files)) < len(files):
        repeated = next(file for file in files if files.count(file) > 1)
        raise UsageError(f"{repeated} is named twice.")
    return files


def _matching_files(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = [file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file()]
        steps = [file for file in inside if file.parent.name == "steps"]
        if not inside:
            raise UsageError(f"{pattern} holds no file that ends in {', '.join(ENDINGS)}.")
        return sorted(steps if (path / "steps").is_dir() else inside)
    matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    if not matches:
        raise UsageError(f"{pattern} is neither a file nor a folder, and as a glob it matches nothing.")
    return [file for match in matches for file in _matching_files(match)]


def file_source(file: Path, *, nan_is_ratio_one: bool = False, clamp_rounding: bool = False) -> Source:
    """Return a source that reads a large Parquet file in parts, and any other file at once.

    Raises `UsageError` if the file cannot be read.
    """
    try:
        size = file.stat().st_size
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error

    options = {"nan_is_ratio_one": nan_is_ratio_one, "clamp_rounding": clamp_rounding}

    def parts() -> Iterator[Part]:
        if file.suffix.lower() == ".parquet" and size > LARGE:
            with name_in_errors(file.name):
                yield from read_parquet_parts(file, **options)
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
) -> ImportSummary:
    """Make a run of files. Raises `UsageError` if a file cannot be used; then no run is left behind.

    Args:
        nan_is_ratio_one: leave out tokens whose engine log-prob is NaN, see `loss_masks.mark_unpaired`.
        clamp_rounding: set log-probs slightly above 0 to 0, see `rounding`.
        watch: called with the size of every file that has been read.
    """
    sources = [file_source(file, nan_is_ratio_one=nan_is_ratio_one, clamp_rounding=clamp_rounding) for file in files]
    names = files[0].name if len(files) == 1 else f"{len(files)} files, the first of which is {files[0].name}"
    return write_run(run, read_steps(sources, watch), f"Imported from {names}.")


def import_file(file: Path, run: Path) -> StepRecord:
    """Make a run of a file, and return its first step as recorded. Raises `UsageError` as `import_files` does."""
    import_files([file], run)
    return runs.read_step(run, runs.list_steps(run)[0])


def write_run(run: Path, records: Iterable[StepRecord], story: str) -> ImportSummary:
    """Write a complete run of these steps, with their metrics before any correction.

    The run is written in a hidden folder, and gets its name when it is whole. After any error nothing is left behind.
    Raises `UsageError` if the run exists, and whatever `records` raises.
    """
    manifest, reading = RunManifest(slug=run.name, story=story, engine="unknown"), iter(records)
    first = next(reading)  # before any folder is made: an unreadable file leaves none behind
    with whole_directory(run) as unnamed:
        summary = summarize(_write_steps(unnamed, itertools.chain([first], reading)))
        left_out = f" {unpaired_sentence(summary.unpaired, summary.tokens)}" if summary.unpaired else ""
        runs.finish_run(unnamed, replace(manifest, status="complete", story=story + left_out))
    return summary


def summarize(records: Iterable[StepRecord]) -> ImportSummary:
    """Return the summary of these steps. Raises what `records` raises."""
    steps = responses = tokens = unpaired = 0
    lacking: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for record in records:
        mask = record.batch.response_mask
        steps, responses, tokens = steps + 1, responses + len(mask), tokens + int(mask.sum())
        unpaired += record.batch.count_unpaired()
        lacking |= missing(record)
        for note in record.notes:
            # One note per column (its first word) is printed, with the number of other steps.
            notes.setdefault(note.partition(" ")[0], []).append(f"step {record.step}: {note}")
        del record, mask  # frees the memory before the next step is read
    sentences = (first + (f" So are {len(more)} more steps." if more else "") for first, *more in notes.values())
    return ImportSummary(steps, responses, tokens, lacking, tuple(sentences), unpaired)


def _write_steps(run: Path, records: Iterable[StepRecord]) -> Iterator[StepRecord]:
    for record in records:
        write_step_with_metrics(run, record)
        yield record
        del record  # frees the memory before the next step is read


def write_step_with_metrics(run: Path, record: StepRecord) -> None:
    """Write a step, and its metrics before any correction."""
    row = evaluate(record.batch, CorrectionConfig())[1]
    if record.batch.rewards is not None:
        row["reward"] = float(record.batch.rewards.mean())
    if count := record.batch.count_unpaired():
        row["unpaired_tokens"] = count
    runs.write_step(run, fill_missing(record))
    runs.append_metrics(run, {"step": record.step} | {key: x for key, x in row.items() if math.isfinite(x)})


# --- files → steps ---


def read_steps(sources: Sequence[Source], watch: Watch = lambda _: None) -> Iterator[StepRecord]:
    """Yield every step with its ranks merged.

    Raises `UsageError` if a step comes twice, or one of its ranks is missing.
    """
    ranks_of: dict[int, set[int | None]] = {}
    groups = _group_by_rank(sources)
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
                    f"{path} is of step {number}, and so is another file, but their names do not differ by a rank."
                )
            ranks_of[number] = {rank_of_path(source.path) for source, _ in parts}
            _check_ranks(ranks_of, number)
            record = _merge_ranks(parts, number)
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
