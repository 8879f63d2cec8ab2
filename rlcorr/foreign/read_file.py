"""A file of log-prob pairs, in any of the formats that are read, as recorded steps.

Parquet and JSON Lines hold a response per row; .npz, .pt and .safetensors hold arrays (B, T) with a mask, or all tokens
in one array (N,) with lengths or offsets. rollout_log_probs and old_log_probs are needed; `names` has their names in
other systems. Files are not trusted: no pickle is executed, and sizes are checked before data is read.
"""

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.aborted import leave_out_aborted
from rlcorr.foreign.arrays import npz_columns, safetensors_columns
from rlcorr.foreign.columns import MAX_BYTES, Columns, check_limit
from rlcorr.foreign.json_rows import json_columns
from rlcorr.foreign.loss_masks import mark_unpaired
from rlcorr.foreign.names import PAIR_NAMES, RECORDED_STEP_COLUMNS, WANTED, to_our_names
from rlcorr.foreign.parquet import column_names, parquet_columns, parquet_parts
from rlcorr.foreign.pickles import pickle_columns, refusal
from rlcorr.foreign.real_tokens import as_lists, trim_padding
from rlcorr.foreign.rounding import clamp_columns
from rlcorr.foreign.step_numbers import concat_columns, split_by_step, step_of_path
from rlcorr.foreign.to_record import to_record
from rlcorr.foreign.torch_files import torch_columns
from rlcorr.records.step_files import StepRecord

Reader = Callable[[bytes, Set[str]], tuple[Columns, list[str]]]
_READERS: dict[str, Reader] = {
    ".parquet": parquet_columns, ".jsonl": json_columns, ".json": json_columns, ".npz": npz_columns,
    ".safetensors": safetensors_columns, ".pt": torch_columns, ".pth": torch_columns, ".pkl": pickle_columns,
    ".pickle": pickle_columns,
}  # fmt: skip
ENDINGS = tuple(_READERS)
_CONTENT = {
    ".jsonl": ".json", ".npz": "an archive", ".pt": "an archive", ".pth": "an archive", ".pkl": "a pickle",
    ".pickle": "a pickle",
}  # fmt: skip
"""Suffix → the kind that the content must look like, if it differs from the suffix."""
_PICKLES = (".ckpt", ".bin", ".joblib")


@dataclass(frozen=True)
class Part:
    """The rows of one step in a file; `step` is None if neither the file nor its name has one."""

    step: int | None
    columns: Columns
    may_be_padded: bool
    aborted: int = 0
    """Rows that were left out of the file, see `aborted`; those of all its steps are counted with the first part."""


@dataclass(frozen=True)
class Repairs:
    """Faults of a file that are repaired on request. Without it the file is refused."""

    nan_is_ratio_one: bool = False  # leave out tokens whose engine log-prob is NaN, see `loss_masks.mark_unpaired`
    clamp_rounding: bool = False  # set log-probs slightly above 0 to 0, see `rounding`
    leave_out_aborted: bool = False  # leave out rows for which one side has no log-prob, see `aborted`


def read_parts(name: str, content: bytes, **repairs: bool) -> list[Part]:
    """Return the content of a file by step, with log-probs that are not checked yet.

    Args:
        name: name of the file. Its suffix says the format and its digits may say the step; nothing is opened.
        content: bytes of the file.
        repairs: those of `Repairs`.

    Raises `UsageError` if the file cannot be read or lacks a needed column.
    """
    with name_in_errors(name):
        columns, names = _reader(name, content)(content, WANTED)
        return to_parts(columns, names, step_of_path(name), **repairs)


def read_parquet_parts(path: Path, **repairs: bool) -> Iterator[Part]:
    """Do the same as `read_parts` for a Parquet file of any size, of which some rows are in memory at a time."""
    names = column_names(path)
    for columns, _ in parquet_parts(path, WANTED):
        yield from to_parts(columns, names, step_of_path(str(path)), **repairs)


def to_parts(columns: Columns, names: Collection[str], path_step: int | None, **repairs: bool) -> list[Part]:
    """Return columns, still under the file's names, as one part per step.

    Args:
        columns: the columns that were read.
        names: the names of all columns of the file.
        path_step: the step in the name of the file, if it has one.
        repairs: those of `Repairs`.

    Raises `UsageError` if a needed column is missing or unreadable.
    """
    asked, aborted = Repairs(**repairs), 0
    if asked.leave_out_aborted:
        columns, aborted = leave_out_aborted(columns, PAIR_NAMES)
    ready = trim_padding(to_our_names(columns, names))
    if asked.nan_is_ratio_one:
        ready = mark_unpaired(ready)
    if asked.clamp_rounding:
        ready = clamp_columns(ready)
    may_be_padded = not set(names) >= RECORDED_STEP_COLUMNS
    return [
        Part(step, rows, may_be_padded, 0 if number else aborted)
        for number, (step, rows) in enumerate(split_by_step(ready, path_step))
    ]


def merge_parts(parts: Sequence[Part], step: int | None = None) -> StepRecord:
    """Return the rows of all parts as one step. Real tokens are moved to the left, so that padding comes last.

    A log-prob may be at most 0.01 (rounding, as in `TokenBatch.check_values`). It may be −inf; its ratio is then e^±20.

    Args:
        parts: parts of one step, for example those of its ranks.
        step: the number of the step, if it is not that of the parts.

    Raises `UsageError` for NaN in a real token, −inf in both log-probs, or a needed column that cannot be used.
    """
    number = parts[0].step if step is None else step
    columns = concat_columns([as_lists(part.columns) if len(parts) > 1 else part.columns for part in parts])
    columns = columns if number is None else columns | {"step": torch.tensor(number)}
    record = to_record(columns, may_be_padded=any(part.may_be_padded for part in parts))
    return replace(record, aborted=sum(part.aborted for part in parts))


@contextmanager
def name_in_errors(name: str) -> Iterator[None]:
    """Put the name of the file before every `UsageError` that is raised inside."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{_file_name(name)}: {error}") from error


# --- the format of a file ---


def _reader(name: str, content: bytes) -> Reader:
    """Return the reader for this suffix. Raises `UsageError` if the content starts like another format."""
    suffix = PurePosixPath(name).suffix.lower()
    kind = _kind(content)
    expected = _CONTENT.get(suffix, suffix)
    if suffix in _PICKLES or (kind == "a pickle" and expected != kind):
        raise refusal(content)
    if suffix not in _READERS:
        raise UsageError(f"files that end in {', '.join(_READERS)} are read; this one ends in {suffix!r:.20}.")
    check_limit(MAX_BYTES, len(content), "bytes")
    if not content.strip(b" \t\r\n\0"):
        raise UsageError("is empty.")
    if expected not in (kind, "a pickle"):  # a pickle of protocol 0 or 1 may start with any byte
        raise UsageError(f"ends in {suffix}, but its content looks like {kind}.")
    return _READERS[suffix]


def _kind(content: bytes) -> str:
    if content[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return "a pickle"
    if content[:4] == b"PAR1":
        return ".parquet"
    if content[:2] == b"PK":
        return "an archive"
    if content[8:9] == b"{" and content[:1] != b"{" and b"\0" in content[:8]:
        return ".safetensors"
    return ".json" if content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else "something else"


def _file_name(name: str) -> str:
    """Return the last part of a path, with unprintable characters escaped."""
    return repr(PurePosixPath(name.replace("\\", "/")).name[-80:])
