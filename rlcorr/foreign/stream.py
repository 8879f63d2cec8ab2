"""Parquet files of log-prob pairs, of any size and number, read as one small batch after the other.

Responses of any length are sorted by length before they are padded, so that the padding is small.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, require_lists
from rlcorr.foreign.map_names import WANTED, WANTED_TO_MEASURE
from rlcorr.foreign.read_file import after_row, find_files, read_columns
from rlcorr.foreign.steps import to_tokens
from rlcorr.foreign.to_record import NoTokens, to_record
from rlcorr.records import runs
from rlcorr.records.step_files import UNPAIRED, StepRecord
from rlcorr.types import TokenBatch

MAX_PADDED_TOKENS = 1 << 18
"""Rows × columns of a batch, padding included: small enough for the processor's cache."""


def pair_files(source: str) -> list[Path]:
    """Return the Parquet files of a recorded run, or of a file, a folder or a glob. Raises `UsageError` if none."""
    run = None if Path(source).exists() else runs.list_runs().get(source)
    return find_files([str(run or source)], (".parquet",))


def pair_batches(files: Sequence[Path], *, advantages: bool, clamp_rounding: bool = False) -> Iterator[TokenBatch]:
    """Yield all real tokens of the files as float64 batches, with the advantages if requested.

    `clamp_rounding` sets log-probs slightly above 0 to 0 (`check_values.ROUNDING`). Raises `UsageError` for unusable
    numbers, and if there are no tokens at all.
    """
    names = ("rollout_log_probs", "old_log_probs", *(("advantages",) if advantages else ()))
    tokens = 0
    for file in files:
        row = 0
        try:
            for part in read_columns(file, ".parquet", WANTED_TO_MEASURE, in_parts=True):
                with after_row(row):
                    columns, left_out = to_tokens(part.columns, part.names, clamp_rounding=clamp_rounding)
                row += part.rows
                if lacking := [name for name in names if name not in columns]:
                    why = "the preset needs the sign of the advantage, but there is no column advantages."
                    raise UsageError(left_out.get(lacking[0], why))
                for batch in to_batches({name: columns[name] for name in names}):
                    tokens += int(batch.response_mask.sum())
                    yield batch
        except UsageError as error:
            path = str(file).replace("\n", "\\n")  # a message is one line
            raise UsageError(f"{path}: {error}") from error
    if not tokens:
        raise UsageError(f"no tokens in {len(files)} file(s), the first of which is {files[0]}.")


def to_batches(columns: Columns) -> Iterator[TokenBatch]:
    """Yield all responses that have tokens, the shortest first, as float64 batches of about `MAX_PADDED_TOKENS`.

    The padding of a row holds the values that follow it; only the mask says which tokens are real. In float64, sums
    over any number of tokens agree with those of another program to more digits than are printed.
    """
    lists = {name: require_lists(name, column) for name, column in columns.items()}
    unsorted = lists["rollout_log_probs"].lengths
    lengths, order = unsorted.sort()
    starts = (unsorted.cumsum(0) - unsorted)[order]
    longest = int(lengths.max()) if len(lengths) else 0
    # With `longest` zeros at the end, a window of any width that starts at a response stays within the array.
    windows = {name: torch.cat([one.values, one.values.new_zeros(longest)]) for name, one in lists.items()}
    for rows in _row_groups(lengths.tolist()):
        width = int(lengths[rows.stop - 1])
        fields = {name: values.unfold(0, width, 1)[starts[rows]].double() for name, values in windows.items()}
        yield TokenBatch(response_mask=torch.arange(width) < lengths[rows, None], **fields)


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


def first_records(files: Sequence[Path], tokens: int, *, clamp_rounding: bool = False) -> Iterator[StepRecord]:
    """Yield records with ids from the beginning of the files, until they have at least `tokens` tokens.

    Each record is a part of a file that fits into memory. The column step is ignored, and parts without tokens are
    skipped. Raises `UsageError` for unusable numbers.
    """
    read = 0
    for file in files:
        for part in read_columns(file, ".parquet", WANTED, in_parts=True):
            columns, left_out = to_tokens(part.columns, part.names, clamp_rounding=clamp_rounding)
            columns.pop("step", None)
            try:
                record = to_record(columns, 1, left_out)
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
