"""A file of log-prob pairs, in any of the formats that are read, as columns and as parts of steps.

Parquet and JSON Lines hold a response per row; .npz, .pt and .safetensors hold arrays (B, T) with a mask, or all tokens
in one array (N,) with lengths. rollout_log_probs and old_log_probs are needed; `map_names` has their names
in other systems. Files are not trusted: another process parses them (`child`), and no pickle is executed.
"""

import glob
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.child import parsed, seconds_for
from rlcorr.foreign.columns import Column, Columns, from_array, from_arrow, from_table, try_read
from rlcorr.foreign.map_names import KEYS, WANTED
from rlcorr.foreign.parse.request import MAX_ROWS, MAX_TOKENS, Piece, Request, Unreadable
from rlcorr.foreign.steps import Part, name_in_errors, step_of_path, to_parts
from rlcorr.records.disk import LARGEST, naming, opened
from rlcorr.systems.mapping.facts import FACTS

ENDINGS = (".parquet", ".jsonl", ".json", ".npz", ".safetensors", ".pt", ".pth")
_PICKLES = (".pkl", ".pickle", ".ckpt", ".bin", ".joblib")
LARGE = 32 << 20
"""A Parquet file with more bytes than this is never whole in memory."""
PART = 1 << 18
"""Numbers of a column of such a file that are in memory at once."""
_HEAD = 1 << 20
"""Bytes at the beginning of a pickle that say which system wrote it."""
_CONVERSIONS = {
    b"skyrl": FACTS["SkyRL"].from_pickle,
    b"verl": FACTS["verl"].from_pickle,
    b"roll.distributed": "ROLL's rollout_mock has the engine's log-probs only, so it has no pair",
}
_ANY_ARRAYS = (
    "arrays (B, T) go into `numpy.savez('pairs.npz', rollout_log_probs=…, old_log_probs=…, response_mask=…)`, or with "
    "torch.save into a .pt"
)


# --- finding files ---


def find_files(paths: Sequence[str], endings: Sequence[str] = ENDINGS) -> list[Path]:
    """Return the files named by paths, all files in folders and their subfolders, and all matches of globs.

    Raises `UsageError` if one of the paths gives no file, or a file is named twice.
    """
    files = [file for path in paths for file in _matching_files(path, endings)]
    if len(set(files)) < len(files):
        repeated = next(file for file in files if files.count(file) > 1)
        raise UsageError(f"{repeated} is named twice.")
    return files


def _matching_files(pattern: str, endings: Sequence[str]) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        every = list(_files_below(path))
        inside = [file for file in every if file.suffix.lower() in endings]
        inside = inside or [file for file in every if file.suffix.lower() in _PICKLES]  # refused with advice
        if (path / "steps").is_dir():  # of a run
            inside = [file for file in inside if file.parent.name == "steps"]
        if not inside:
            raise UsageError(f"{pattern} holds no file that ends in {', '.join(endings)}.")
        return sorted(inside)
    matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    if not matches:
        raise UsageError(f"{pattern} is neither a file nor a folder, and as a glob it matches nothing.")
    return [file for match in matches for file in _matching_files(match, endings)]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders. Raises `UsageError` for one that cannot be listed."""

    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename} cannot be read ({error.strerror}), so the import would not be whole.")

    for inside, _, names in os.walk(folder, onerror=refuse):
        yield from (file for name in names if (file := Path(inside, name)).is_file())


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
    is_whole = True
    tables: list[pa.Table] = []
    for facts, table in _pieces(path, ending, wanted):
        names = facts.get("names", names)
        if facts.get("rows") == 0:
            if in_parts:
                return
            raise UsageError("holds no rows.")
        columns |= {name: Unreadable(why) for name, why in facts.get("unreadable", {}).items()}
        if "name" in facts:
            columns |= _array(facts, table)
        elif table.num_columns:
            tables.append(table)
            if in_parts or _is_long(tables):
                in_parts, is_whole = True, False
                yield _joined(columns, names, tables)
                tables = []
    if tables or is_whole:
        yield _joined(columns, names, tables)


def _pieces(path: Path, ending: str, wanted: frozenset[str]) -> Iterator[Piece]:
    """Yield what another process reads of a file. Raises `UsageError` if it cannot be read whole."""
    try:
        with opened(path, sys.maxsize if ending == ".parquet" else LARGEST) as file:
            seconds = seconds_for(os.fstat(file.fileno()).st_size)
            yield from parsed(Request(path.absolute(), ending, wanted, KEYS, PART, seconds))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.") from error


def _array(facts: dict[str, Any], table: pa.Table) -> Columns:
    name = facts["name"]

    def read() -> Column:
        column = from_arrow(name, table[name])
        return from_array(name, column.view(facts["shape"])) if isinstance(column, torch.Tensor) else column

    return {name: try_read(read)}


def _is_long(tables: Sequence[pa.Table]) -> bool:
    """Check whether there are more numbers or rows than are read at once: padded rows of zeros make a small file."""
    numbers = [sum(_count_numbers(table[name]) for table in tables) for name in tables[0].column_names]
    return max(numbers) > MAX_TOKENS or sum(map(len, tables)) > MAX_ROWS


def _count_numbers(column: pa.ChunkedArray) -> int:
    return sum(len(chunk.flatten()) if pa.types.is_list(column.type) else len(chunk) for chunk in column.chunks)


def _joined(columns: Columns, names: list[str], tables: Sequence[pa.Table]) -> FileColumns:
    table = pa.concat_tables(tables) if tables else None
    return FileColumns(columns | (from_table(table) if table else {}), names, len(table) if table else 0)


@contextmanager
def after_row(row: int) -> Iterator[None]:
    """Add to every `UsageError` that is raised inside after which row of the file its rows are counted, unless at 0."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"after row {row:,}: {error}" if row else str(error)) from error


# --- files → parts of steps ---


def read_parts(name: str, content: bytes, **repairs: bool) -> Iterator[Part]:
    """Return the parts of a file whose content is in memory, see `parts_of_file`; `name` is opened nowhere."""
    with name_in_errors(name):
        ending = _ending(name, content[:_HEAD], len(content))

    def parts() -> Iterator[Part]:
        with naming(Path("the folder for temporary files")):
            folder = tempfile.TemporaryDirectory(prefix="rlcorr_")
        with folder:
            path = Path(folder.name) / "file"
            with naming(path):
                path.write_bytes(content)
            yield from _parts(path, name, ending, repairs)

    return parts()


def parts_of_file(path: Path, **repairs: bool) -> Iterator[Part]:
    """Yield the content of a file by step, every value checked.

    Args:
        path: the file. Its suffix says the format, and its digits may say the step.
        repairs: those of `to_parts`.

    Raises `UsageError` if the file cannot be read, or lacks a needed column or has a wrong number in it.
    """
    with name_in_errors(str(path)):
        try:
            with opened(path, sys.maxsize) as file:
                ending = _ending(str(path), file.read(_HEAD), os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}.") from error
    yield from _parts(path, str(path), ending, repairs)


def _parts(path: Path, name: str, ending: str, repairs: dict[str, bool]) -> Iterator[Part]:
    row = 0
    with name_in_errors(name):
        in_parts = ending == ".parquet" and path.stat().st_size > LARGE
        for part in read_columns(path, ending, WANTED, in_parts=in_parts):
            with after_row(row):
                parts = to_parts(part.columns, part.names, step_of_path(name), **repairs)
            row += part.rows
            del part  # frees the memory before the parts are merged
            yield from parts
            parts.clear()


def _ending(name: str, head: bytes, size: int) -> str:
    """Return the suffix that says the format. Raises `UsageError` for others, for pickles, and for an empty file."""
    ending = PurePosixPath(name).suffix.lower()
    # torch.save writes a zip archive, so a pickle under its ending is another program's. The first byte of a
    # .safetensors is a part of a number.
    if ending in _PICKLES or (head[:1] == b"\x80" and ending != ".safetensors"):
        conversion = next((text for mark, text in _CONVERSIONS.items() if mark in head), _ANY_ARRAYS)
        raise UsageError(
            "Reading a pickle runs the code in it, so it is not read here. Convert it where you trust it: "
            f"{conversion}."
        )
    if ending not in ENDINGS:
        raise UsageError(f"files that end in {', '.join(ENDINGS)} are read; this one ends in {ending!r:.20}.")
    if not size:
        raise UsageError("the file is empty.")
    return ending
