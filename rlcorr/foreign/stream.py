"""Parquet files of log-prob pairs, of any size and number, read as one small batch after the other.

Responses of any length are sorted by length before they are padded, so that the padding is small.
"""

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns
from rlcorr.foreign.find_columns import to_our_names
from rlcorr.foreign.names import WANTED, WANTED_TO_MEASURE
from rlcorr.foreign.read_file import column_names, read_columns
from rlcorr.foreign.steps import Repairs, to_tokens
from rlcorr.foreign.to_record import NoTokens, RaggedTokens, to_ragged, to_record
from rlcorr.records import runs
from rlcorr.records.step_files import UNPAIRED, StepRecord
from rlcorr.types import TokenBatch

# --- responses of any length ---


POOL_TOKENS = 1 << 22
"""Number of tokens that are sorted by length together. The more there are, the less the lengths in a batch differ."""
MAX_PADDED_TOKENS = 1 << 18
"""Rows × columns of a batch, padding included: small enough for the processor's cache."""


def pool(pieces: Iterable[RaggedTokens]) -> Iterator[RaggedTokens]:
    """Yield the same responses in pieces of at least `POOL_TOKENS` tokens; the last piece may be smaller."""
    waiting: list[RaggedTokens] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(len(ragged.fields["rollout_log_probs"]) for ragged in waiting) >= POOL_TOKENS:
            yield _concat(waiting)
            waiting = []
    if waiting:
        yield _concat(waiting)


def _concat(pieces: list[RaggedTokens]) -> RaggedTokens:
    fields = {name: torch.cat([piece.fields[name] for piece in pieces]) for name in pieces[0].fields}
    return RaggedTokens(fields, torch.cat([piece.lengths for piece in pieces]))


def to_batches(ragged: RaggedTokens) -> Iterator[TokenBatch]:
    """Yield all responses that have tokens, the shortest first, as float64 batches of about `MAX_PADDED_TOKENS`.

    The padding of a row holds the values that follow it in `fields`; only the mask says which tokens are real. In
    float64, sums over any number of tokens agree with those of another program to more digits than are printed.
    """
    lengths, order = ragged.lengths.sort()
    starts = (ragged.lengths.cumsum(0) - ragged.lengths)[order]
    longest = int(lengths.max()) if len(lengths) else 0
    # With `longest` zeros at the end, a window of any width that starts at a response stays within the array.
    windows = {name: torch.cat([values, values.new_zeros(longest)]) for name, values in ragged.fields.items()}
    for rows in _row_groups(lengths.tolist()):
        width = int(lengths[rows.stop - 1])
        columns = {name: values.unfold(0, width, 1)[starts[rows]].double() for name, values in windows.items()}
        yield TokenBatch(response_mask=torch.arange(width) < lengths[rows, None], **columns)


def _row_groups(lengths: list[int]) -> Iterator[slice]:
    """Yield consecutive rows of ascending lengths: at least one, and as many as fit into `MAX_PADDED_TOKENS`.

    Rows without tokens are skipped.
    """
    start = next((row for row, length in enumerate(lengths) if length), len(lengths))
    for row in range(start, len(lengths)):
        if row > start and (row + 1 - start) * lengths[row] > MAX_PADDED_TOKENS:
            yield slice(start, row)
            start = row
    if start < len(lengths):
        yield slice(start, len(lengths))


# --- finding files ---


def pair_files(source: str) -> list[Path]:
    """Return the Parquet files of a run (its name or directory), a folder, a glob of files or folders, or one file.

    Raises `UsageError` if there are none.
    """
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _parquet_files(path)
    if glob.has_magic(source):
        matches = [Path(match) for match in sorted(glob.glob(source, recursive=True))]
        if not matches:
            raise UsageError(f"no file or folder matches {source!r}.")
        return [file for match in matches for file in (_parquet_files(match) if match.is_dir() else [match])]
    recorded = runs.list_runs()
    if source in recorded:
        return _parquet_files(recorded[source])
    raise UsageError(
        f"{source!r} is neither a file, a folder or a glob, nor one of the recorded runs: {', '.join(recorded)}."
    )


def _parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files directly in a folder, or those of the steps if the folder is a run."""
    steps = folder / "steps"
    files = sorted((steps if steps.is_dir() else folder).glob("*.parquet"))
    if not files:
        below = len(list(folder.rglob("*.parquet")))
        hint = f"; its subfolders hold {below}: give a glob such as '{folder}/**/*.parquet'" if below else ""
        raise UsageError(f"{folder} holds no Parquet file{hint}.")
    return files


# --- reading them ---


def check_columns(files: Sequence[Path], *, advantages: bool) -> None:
    """Raise `UsageError` with the name of the first file that lacks the columns of a pair, or needed advantages.

    Only footers are read, so that an unsuitable file is reported before hours of reading.
    """
    for file in files:
        try:
            names = column_names(file)
            empty: Columns = {name: torch.empty(0) for name in names if name in WANTED_TO_MEASURE}
            _check_advantages(to_our_names(empty, names), advantages)
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error


def pair_batches(files: Sequence[Path], *, advantages: bool, clamp_rounding: bool = False) -> Iterator[TokenBatch]:
    """Yield all real tokens of the files as float64 batches, with the advantages if requested.

    `clamp_rounding` sets log-probs slightly above 0 to 0 (`values.ROUNDING`). Raises `UsageError` for unusable numbers,
    and if there are no tokens at all.
    """
    tokens = 0
    for ragged in pool(piece for file in files for piece in _read_ragged(file, advantages, clamp_rounding)):
        tokens += len(ragged.fields["rollout_log_probs"])
        yield from to_batches(ragged)
    if not tokens:
        raise UsageError(f"no tokens in {len(files)} file(s), the first of which is {files[0]}.")


def first_records(files: Sequence[Path], tokens: int, *, clamp_rounding: bool = False) -> Iterator[StepRecord]:
    """Yield records with ids from the beginning of the files, until they have at least `tokens` tokens.

    Each record is a part of a file that fits into memory. The column step is ignored, and parts without tokens are
    skipped. Raises `UsageError` for unusable numbers.
    """
    read = 0
    for file in files:
        for part in read_columns(file, ".parquet", WANTED, in_parts=True):
            columns = to_tokens(part.columns, part.names, Repairs(clamp_rounding=clamp_rounding))
            try:
                record = to_record({name: column for name, column in columns.items() if name != "step"})
            except NoTokens:
                continue
            yield record
            read += int(record.batch.response_mask.sum())
            if read >= tokens:
                return


def count_unpaired_tokens(files: Sequence[Path]) -> int:
    """Return how many tokens were left out of recorded steps because the engine's log-prob was NaN."""
    wanted = frozenset({UNPAIRED})
    parts = (part for file in files for part in read_columns(file, ".parquet", wanted, in_parts=True))
    counts = [part.columns.get(UNPAIRED) for part in parts]
    return sum(int(count.sum()) for count in counts if isinstance(count, torch.Tensor))


def _read_ragged(file: Path, advantages: bool, clamp_rounding: bool) -> Iterator[RaggedTokens]:
    first_row = 0
    try:
        for part in read_columns(file, ".parquet", WANTED_TO_MEASURE, in_parts=True):
            columns = to_tokens(part.columns, part.names, Repairs(clamp_rounding=clamp_rounding))
            _check_advantages(columns, advantages)
            yield to_ragged(columns, ("advantages",) if advantages else ())
            first_row += part.rows
    except UsageError as error:
        after = f"after row {first_row:,}: " if first_row else ""
        raise UsageError(f"{file}: {after}{error}") from error


def _check_advantages(columns: Columns, advantages: bool) -> None:
    """Raise `UsageError` if advantages are needed and missing."""
    if advantages and "advantages" not in columns:
        raise UsageError("the preset needs the sign of the advantage, but there is no column advantages.")
