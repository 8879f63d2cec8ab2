"""Your own data: a file of log-prob pairs as a recorded step, so that every view and every tool works on it.

Parquet and JSON Lines hold a response per row, .npz, .pt and .safetensors arrays (B, T) with a mask, or all tokens in
one array (N,) with lengths or offsets. What is needed are rollout_log_probs and old_log_probs; `names` has how other
systems call them. Files come from strangers: nothing in a pickle is run, sizes are looked at before data.
"""

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.arrays import npz_columns, safetensors_columns
from rlcorr.foreign.columns import MAX_BYTES, Columns, at_most
from rlcorr.foreign.counted import with_unpaired
from rlcorr.foreign.json_rows import json_columns
from rlcorr.foreign.names import OF_A_RECORDED_STEP, WANTED, ours
from rlcorr.foreign.parquet import column_names, parts, to_columns
from rlcorr.foreign.pickles import pickle_columns, refusal
from rlcorr.foreign.rounding import with_rounding_clamped
from rlcorr.foreign.step import as_lists, to_record
from rlcorr.foreign.steps import by_step, joined, step_in
from rlcorr.foreign.torch_files import torch_columns
from rlcorr.records.step_files import StepRecord

Reader = Callable[[bytes, Set[str]], tuple[Columns, list[str]]]
_READERS: dict[str, Reader] = {
    ".parquet": to_columns, ".jsonl": json_columns, ".json": json_columns, ".npz": npz_columns,
    ".safetensors": safetensors_columns, ".pt": torch_columns, ".pth": torch_columns, ".pkl": pickle_columns,
    ".pickle": pickle_columns,
}  # fmt: skip
ENDINGS = tuple(_READERS)
_CONTENT = {
    ".jsonl": ".json", ".npz": "an archive", ".pt": "an archive", ".pth": "an archive", ".pkl": "a pickle",
    ".pickle": "a pickle",
}  # fmt: skip
"""Suffix → what the content must look like, where that is not the suffix."""
_PICKLES = (".ckpt", ".bin", ".joblib")


@dataclass(frozen=True)
class Part:
    """The rows of a step that one file holds; the step is None where the file does not say it."""

    step: int | None
    columns: Columns
    may_be_padded: bool


def read_pairs(
    name: str, content: bytes, *, nan_is_ratio_one: bool = False, clamp_rounding: bool = False
) -> StepRecord:
    """The step that a file holds, log-probs in float32. `name` is used for its suffix, for the step that it may say,
    and in messages, never as a path.

    Real tokens are those that the mask, lengths or offsets say; the others are taken out, so that every response starts
    in column 0 and has no holes: nothing that is computed depends on the place of a token. A log-prob may be up to 0.01
    (rounding, as `TokenBatch.check_values` says; with `clamp_rounding` up to 0.125, which becomes 0) and down to −inf,
    as in recorded steps (a ratio is then e^±20), but not −inf on both sides; NaN on a real token is refused. With
    `nan_is_ratio_one` a token whose NaN is the sampler's is left out and counted in `unpaired_tokens`, as in TRL. What
    the file does not say is None, or an empty text; so is a column beside the pair and the masks that cannot be used,
    and the record's notes say why. Raises `UsageError` for everything else.
    """
    parts = read_parts(name, content, nan_is_ratio_one=nan_is_ratio_one, clamp_rounding=clamp_rounding)
    with naming(name):
        if len(parts) > 1:
            raise UsageError(f"step must be one number for the whole file; got {len(parts)}: import makes a run of it.")
        return record_of(parts)


def read_parts(
    name: str, content: bytes, *, nan_is_ratio_one: bool = False, clamp_rounding: bool = False
) -> list[Part]:
    """The same by step, before its numbers are looked at. Raises `UsageError`."""
    with naming(name):
        columns, names = _reader(name, content)(content, WANTED)
        options = {"nan_is_ratio_one": nan_is_ratio_one, "clamp_rounding": clamp_rounding}
        return parts_of(columns, names, step_in(name), **options)


def parts_of_parquet(path: Path, *, nan_is_ratio_one: bool = False, clamp_rounding: bool = False) -> Iterator[Part]:
    """The same of a Parquet file that need not fit into memory: some rows at a time. Raises `UsageError`."""
    names, options = column_names(path), {"nan_is_ratio_one": nan_is_ratio_one, "clamp_rounding": clamp_rounding}
    for columns, _ in parts(path, WANTED):
        yield from parts_of(columns, names, step_in(str(path)), **options)


def parts_of(
    columns: Columns, names: Collection[str], named: int | None, *, nan_is_ratio_one: bool, clamp_rounding: bool
) -> list[Part]:
    """Columns as the file calls them, by step; `names` are all of the file's, `named` is the step that its name says.
    Raises `UsageError`."""
    ready = ours(columns, names)
    if nan_is_ratio_one:
        ready = with_unpaired(ready)
    if clamp_rounding:
        ready = with_rounding_clamped(ready)
    return [Part(step, rows, not set(names) >= OF_A_RECORDED_STEP) for step, rows in by_step(ready, named)]


def record_of(parts: Sequence[Part], step: int | None = None) -> StepRecord:
    """One step of the rows of all parts, whatever step they say where `step` is given. Raises `UsageError`."""
    number = parts[0].step if step is None else step
    columns = joined([as_lists(part.columns) if len(parts) > 1 else part.columns for part in parts])
    columns = columns if number is None else columns | {"step": torch.tensor(number)}
    return to_record(columns, may_be_padded=any(part.may_be_padded for part in parts))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """What is raised inside says the file."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{_shown(name)}: {error}") from error


# --- which kind of file ---


def _reader(name: str, content: bytes) -> Reader:
    """By the suffix; what the content starts with must agree."""
    suffix = PurePosixPath(name).suffix.lower()
    kind = _kind(content)
    expected = _CONTENT.get(suffix, suffix)
    if suffix in _PICKLES or (kind == "a pickle" and expected != kind):
        raise refusal(content)
    if suffix not in _READERS:
        raise UsageError(f"files that end in {', '.join(_READERS)} are read; this one ends in {suffix!r:.20}.")
    at_most(MAX_BYTES, len(content), "bytes")
    if not content.strip(b" \t\r\n\0"):
        raise UsageError("is empty.")
    if expected not in (kind, "a pickle"):  # the oldest kind of pickle starts with any byte
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


def _shown(name: str) -> str:
    """The last part of a name, with what cannot be printed escaped."""
    return repr(PurePosixPath(name.replace("\\", "/")).name[-80:])
