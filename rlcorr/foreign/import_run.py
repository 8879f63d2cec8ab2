"""Files of pairs imported as one run."""

import ctypes
import itertools
import math
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlcorr.config import CorrectionConfig
from rlcorr.foreign.read_file import parts_of_file
from rlcorr.foreign.steps import Source, Watch, read_steps
from rlcorr.foreign.to_record import fill_missing, missing, unpaired_sentence
from rlcorr.measuring.measure import evaluate
from rlcorr.records import runs
from rlcorr.records.run_folders import whole_directory
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord

_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of glibc's `mallopt`."""
COLUMN = 1 << 18
"""Bytes. A step is written in columns of this size."""


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
    aborted: int = 0
    """Responses that are left out, because one side had no log-prob for them."""

    def left_out(self) -> list[str]:
        """Return a sentence about the tokens, and one about the responses, that were left out on request, if any."""
        sentences = [unpaired_sentence(self.unpaired, self.tokens)] if self.unpaired else []
        if self.aborted:
            counted = f"{self.aborted:,} of {self.aborted + self.responses:,} responses"
            has, are = ("has", "is") if self.aborted == 1 else ("have", "are")
            sentences.append(f"{counted} {has} no log-prob on one side, as after an abort, and {are} left out.")
        return sentences


def return_large_blocks(block: int) -> None:
    """Make the process return every block of so many bytes or more to the system as soon as it is freed.

    By default glibc keeps blocks that are smaller than the largest one that was ever freed, up to 32 MiB, so an import
    would take several row groups more. Other C libraries than glibc are left as they are. It is slower, because the
    system clears every page anew.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, block)


def import_files(
    files: Sequence[Path],
    run: Path,
    *,
    join: bool = False,
    watch: Watch = lambda _: None,
    **repairs: bool,
) -> ImportSummary:
    """Make a run of files. Raises `UsageError` if a file cannot be used; then no run is left behind.

    Args:
        join: join the rows that several files have of one step, see `read_steps`.
        watch: called with the size of every file that has been read.
        repairs: those of `steps.to_parts`.
    """
    sources = [Source(str(f), lambda f=f: parts_of_file(f, **repairs), f.stat().st_size) for f in files]
    names = files[0].name if len(files) == 1 else f"{len(files)} files, the first of which is {files[0].name}"
    return write_run(run, read_steps(sources, watch, join=join), f"Imported from {names}.")


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
        runs.finish_run(unnamed, replace(manifest, status="complete", story=" ".join([story, *summary.left_out()])))
    return summary


def summarize(records: Iterable[StepRecord]) -> ImportSummary:
    """Return the summary of these steps. Raises what `records` raises."""
    steps = responses = tokens = unpaired = aborted = 0
    lacking: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for record in records:
        mask = record.batch.response_mask
        steps, responses, tokens = steps + 1, responses + len(mask), tokens + int(mask.sum())
        unpaired, aborted = unpaired + record.batch.count_unpaired(), aborted + record.aborted
        lacking |= missing(record)
        for note in record.notes:
            # One note per column (its first word) is printed, with the number of other steps.
            notes.setdefault(note.partition(" ")[0], []).append(f"step {record.step}: {note}")
        del record, mask  # frees the memory before the next step is read
    sentences = (first + (f" So are {len(more)} more steps." if more else "") for first, *more in notes.values())
    return ImportSummary(steps, responses, tokens, lacking, tuple(sentences), unpaired, aborted)


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
