"""A file of log-prob pairs, in any of the formats that are read, as recorded steps.

Parquet and JSON Lines hold a response per row; .npz, .pt and .safetensors hold arrays (B, T) with a mask, or all tokens
in one array (N,) with lengths or offsets. rollout_log_probs and old_log_probs are needed; `names` has their names in
other systems. Files are not trusted: another process parses them (`child`), and no pickle is executed.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.child import parsed, seconds_for
from rlcorr.foreign.columns import Columns, from_array, from_arrow, from_table, try_read
from rlcorr.foreign.names import KEYS, WANTED
from rlcorr.foreign.parse.limits import MAX_BYTES, MAX_ROWS, MAX_TOKENS, Unreadable, check_limit
from rlcorr.foreign.parse.request import Request
from rlcorr.foreign.steps import Part, name_in_errors, step_of_path, to_parts
from rlcorr.systems import skyrl, slime
from rlcorr.systems.verl import dumps as verl_dumps

_CONTENT = {
    ".parquet": ".parquet", ".jsonl": ".json", ".json": ".json", ".npz": "an archive", ".safetensors": ".safetensors",
    ".pt": "an archive", ".pth": "an archive", ".pkl": "a pickle", ".pickle": "a pickle",
}  # fmt: skip
"""Ending → the kind that the content must look like."""
ENDINGS = tuple(_CONTENT)
_PICKLES = (".ckpt", ".bin", ".joblib")
LARGE = 32 << 20
"""A Parquet file with more bytes than this is never whole in memory."""
PART = 1 << 18
"""Numbers of a column of such a file that are in memory at once."""
_HEAD = 1 << 20
"""Bytes at the beginning of a file that say what it is."""
_CONVERSIONS = {
    b"skyrl": skyrl.FROM_PICKLE,
    b"verl": verl_dumps.FROM_PICKLE,
    b"slime": slime.FROM_PICKLE,
    b"roll.distributed": "ROLL's rollout_mock has the engine's log-probs only, so it has no pair",
}
_ANY_ARRAYS = (
    "arrays (B, T) go into `numpy.savez('pairs.npz', rollout_log_probs=…, old_log_probs=…, response_mask=…)`, or with "
    "torch.save into a .pt"
)


# --- files → columns ---


@dataclass(frozen=True)
class FileColumns:
    """The wanted columns of a file, or of some of its rows, and the names of all its columns."""

    columns: Columns
    names: list[str]
    rows: int
    """Rows of a table; 0 for arrays."""


def read_columns(path: Path, ending: str, wanted: frozenset[str], *, in_parts: bool = False) -> Iterator[FileColumns]:
    """Yield the wanted columns of a file, whole unless it is a table with more than `MAX_TOKENS` numbers in a column.

    Args:
        in_parts: yield some rows at a time in any case.

    Raises `UsageError` if the file cannot be read.
    """
    names: list[str] = []
    columns: Columns = {}
    tables: list[pa.Table] = []
    for facts, table in parsed(_request(path, ending, wanted)):
        names = facts.get("names", names)
        if facts.get("rows") == 0 and not in_parts:
            raise UsageError("holds no rows.")
        columns |= {name: Unreadable(why) for name, why in facts.get("unreadable", {}).items()}
        if "name" in facts:
            columns |= _array(facts, table)
        elif table.num_columns:
            tables.append(table)
            if in_parts or _is_long(tables):
                in_parts = True
                yield _joined(columns, names, tables)
                tables = []
    if tables or not in_parts:
        yield _joined(columns, names, tables)


def column_names(path: Path) -> list[str]:
    """Return the names of all columns of a Parquet file. Raises `UsageError` if it is damaged."""
    return [name for facts, _ in parsed(_request(path, ".parquet", frozenset())) for name in facts["names"]]


def _request(path: Path, ending: str, wanted: frozenset[str]) -> Request:
    return Request(path.absolute(), ending, wanted, KEYS, PART, seconds_for(path.stat().st_size))


def _array(facts: dict[str, Any], table: pa.Table) -> Columns:
    name = facts["name"]
    column = try_read(lambda: from_arrow(name, table[name]))
    return {name: from_array(name, column.view(facts["shape"])) if isinstance(column, torch.Tensor) else column}


def _is_long(tables: Sequence[pa.Table]) -> bool:
    """Check whether there are more numbers or rows than are read at once: padded rows of zeros make a small file."""
    numbers = [sum(_count_numbers(table[name]) for table in tables) for name in tables[0].column_names]
    return max(numbers) > MAX_TOKENS or sum(map(len, tables)) > MAX_ROWS


def _count_numbers(column: pa.ChunkedArray) -> int:
    return sum(len(chunk.flatten()) if pa.types.is_list(column.type) else len(chunk) for chunk in column.chunks)


def _joined(columns: Columns, names: list[str], tables: Sequence[pa.Table]) -> FileColumns:
    table = pa.concat_tables(tables) if tables else None
    return FileColumns(columns | (from_table(table) if table else {}), names, len(table) if table else 0)


# --- columns → steps ---


def read_parts(name: str, content: bytes, **repairs: bool) -> Iterator[Part]:
    """Return the parts of a file whose content is in memory, see `parts_of_file`; `name` is opened nowhere."""
    with name_in_errors(name):
        ending = _ending(name, content[:_HEAD], len(content))

    def parts() -> Iterator[Part]:
        folder = Path(tempfile.mkdtemp(prefix="rlcorr_"))
        try:
            path = folder / "file"
            path.write_bytes(content)
            yield from _parts(path, name, ending, repairs)
        finally:
            shutil.rmtree(folder)

    return parts()


def parts_of_file(path: Path, **repairs: bool) -> Iterator[Part]:
    """Yield the content of a file by step, with log-probs that are not checked yet.

    Args:
        path: the file. Its suffix says the format, and its digits may say the step.
        repairs: those of `Repairs`.

    Raises `UsageError` if the file cannot be read or lacks a needed column.
    """
    with name_in_errors(str(path)):
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}.") from error
        ending = _ending(str(path), head, path.stat().st_size)
    yield from _parts(path, str(path), ending, repairs)


def _parts(path: Path, name: str, ending: str, repairs: dict[str, bool]) -> Iterator[Part]:
    with name_in_errors(name):
        in_parts = ending == ".parquet" and path.stat().st_size > LARGE
        for part in read_columns(path, ending, WANTED, in_parts=in_parts):
            yield from to_parts(part.columns, part.names, step_of_path(name), **repairs)


# --- the format of a file ---


def _ending(name: str, head: bytes, size: int) -> str:
    """Return the suffix that says the format. Raises `UsageError` if the content starts like another format."""
    ending, kind = PurePosixPath(name).suffix.lower(), _kind(head)
    expected = _CONTENT.get(ending)
    if ending in _PICKLES or (kind == "a pickle" != expected) or (expected == "a pickle" and not _is_skyrl(head)):
        raise _refusal(head)
    if expected is None:
        raise UsageError(f"files that end in {', '.join(ENDINGS)} are read; this one ends in {ending!r:.20}.")
    if ending != ".parquet":
        check_limit(MAX_BYTES, size, "bytes")
    if not head.strip(b" \t\r\n\0"):
        raise UsageError("is empty.")
    if expected not in (kind, "a pickle"):  # a pickle of protocol 0 or 1 may start with any byte
        raise UsageError(f"ends in {ending}, but its content looks like {kind}.")
    return ending


def _is_skyrl(head: bytes) -> bool:
    return skyrl.PICKLE_MARK in head


def _refusal(head: bytes) -> UsageError:
    """Return the error for a pickle, with the conversion for the system that seems to have written it, or any."""
    conversions = [text for mark, text in _CONVERSIONS.items() if mark in head]
    return UsageError(
        "Reading a pickle runs the code in it, so it is not read here. Convert it where you trust it: "
        f"{conversions[0] if conversions else _ANY_ARRAYS}."
    )


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
