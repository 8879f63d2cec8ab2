"""Log-prob pairs that need not fit into memory: Parquet files of any size and number, as one batch after the other."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.answers import Answers, batches, pooled
from rlcorr.foreign.columns import Columns
from rlcorr.foreign.names import OF_A_RECORDED_STEP, PAIR, WANTED, WANTED_TO_MEASURE, ours
from rlcorr.foreign.parquet import column_names, parts
from rlcorr.foreign.rounding import with_rounding_clamped
from rlcorr.foreign.step import NoTokens, to_answers, to_record
from rlcorr.records import runs
from rlcorr.records.step_files import UNPAIRED, StepRecord
from rlcorr.types import TokenBatch

# --- which files ---


def pair_files(place: str) -> list[Path]:
    """The Parquet files of a run (its name or directory), of a folder, of a glob of files or folders, or one file.

    Raises `UsageError` where there are none.
    """
    path = Path(place)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _in_folder(path)
    if glob.has_magic(place):
        matches = [Path(match) for match in sorted(glob.glob(place, recursive=True))]
        if not matches:
            raise UsageError(f"no file or folder matches {place!r}.")
        return [file for match in matches for file in (_in_folder(match) if match.is_dir() else [match])]
    recorded = runs.list_runs()
    if place in recorded:
        return _in_folder(recorded[place])
    raise UsageError(f"{place!r} is neither a file, a folder or a glob nor a recorded run: {', '.join(recorded)}.")


def _in_folder(folder: Path) -> list[Path]:
    """Those that lie directly in it; of a run, those of its steps."""
    steps = folder / "steps"
    files = sorted((steps if steps.is_dir() else folder).glob("*.parquet"))
    if not files:
        below = len(list(folder.rglob("*.parquet")))
        hint = f"; {below} lie in folders below it: give a glob such as '{folder}/**/*.parquet'" if below else ""
        raise UsageError(f"{folder} holds no Parquet file{hint}.")
    return files


# --- what they hold ---


def check_columns(files: Sequence[Path], *, advantages: bool) -> None:
    """Raises `UsageError`, naming the file, unless each has the columns of a pair, and advantages where these are
    needed. Only footers are read, so that a file that does not fit is told of before hours of reading."""
    for file in files:
        try:
            names = column_names(file)
            nothing: Columns = {name: torch.empty(0) for name in names if name in WANTED_TO_MEASURE}
            _needed(ours(nothing, names), advantages)
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error


def pair_batches(files: Sequence[Path], *, advantages: bool, clamp_rounding: bool = False) -> Iterator[TokenBatch]:
    """All real tokens of the files, in float64, with the advantages if they are asked for. `clamp_rounding` makes
    log-probs a little above 0 to 0 (`rounding`). Raises `UsageError`, also where there are no tokens."""
    tokens = 0
    for answers in pooled(piece for file in files for piece in _pieces(file, advantages, clamp_rounding)):
        tokens += len(answers.fields["rollout_log_probs"])
        yield from batches(answers)
    if not tokens:
        raise UsageError(f"no tokens in {len(files)} file(s), the first of which is {files[0]}.")


def first_records(files: Sequence[Path], tokens: int, *, clamp_rounding: bool = False) -> Iterator[StepRecord]:
    """Return what the files begin with, with ids, in parts that fit into memory, until there are so many tokens. What
    step they are of does not matter, and parts without a token are skipped. Raises `UsageError`."""
    read = 0
    for file in files:
        names = column_names(file)
        for columns, _ in parts(file, WANTED):
            ready = {name: column for name, column in ours(columns, names).items() if name != "step"}
            if clamp_rounding:
                ready = with_rounding_clamped(ready)
            try:
                record = to_record(ready, may_be_padded=not set(names) >= OF_A_RECORDED_STEP)
            except NoTokens:
                continue
            yield record
            read += int(record.batch.response_mask.sum())
            if read >= tokens:
                return


def unpaired_tokens(files: Sequence[Path]) -> int:
    """Return how many tokens recorded steps left out because the engine's log-prob was NaN. Raises `UsageError`."""
    counts = [columns.get(UNPAIRED) for file in files for columns, _ in parts(file, {UNPAIRED})]
    return sum(int(count.sum()) for count in counts if isinstance(count, torch.Tensor))


def _pieces(file: Path, advantages: bool, clamp_rounding: bool) -> Iterator[Answers]:
    first_row = 0
    try:
        names = column_names(file)
        may_be_padded = not set(names) >= OF_A_RECORDED_STEP
        for columns, rows in parts(file, WANTED_TO_MEASURE):
            needed = _needed(ours(columns, names), advantages)
            if clamp_rounding:
                needed = with_rounding_clamped(needed)
            yield to_answers(needed, may_be_padded=may_be_padded)
            first_row += rows
    except UsageError as error:
        after = f"after row {first_row:,}: " if first_row else ""
        raise UsageError(f"{file}: {after}{error}") from error


def _needed(columns: Columns, advantages: bool) -> Columns:
    """Without what is in the file but not asked for."""
    wanted = {*PAIR, "response_mask", "lengths"} | ({"advantages"} if advantages else set())
    if advantages and "advantages" not in columns:
        raise UsageError("the preset asks for the sign of the advantage; there is no column advantages.")
    return {name: column for name, column in columns.items() if name in wanted}
