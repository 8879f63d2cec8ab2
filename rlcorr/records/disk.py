"""Files that are written whole, lines of JSON that a running process adds, and the one door by which files are read.

Errors of the disk become sentences. Whatever a stranger's run or file is, the door opens regular files only, bounds
what is read of them, and notices if one changes meanwhile.
"""

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError

OLD_CHECKSUM = "crc32"
"""Key that lines of older versions have; the hashes of the manifest have taken its place."""


LARGEST = 512 << 20
"""Bytes of a file that is read as a whole, and of what it unpacks to."""
LONGEST = 8 << 30
"""Bytes of a file that is read line by line."""
PACKED = 64 << 20
"""Bytes to which a file may unpack, and 20 times its size more: metrics unpack to ten times their size."""
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, UsageError)
"""Exceptions of `content_of`."""


class CannotWrite(UsageError):
    """The disk is full or read-only, or a folder is missing. The message names the file."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Replace an `OSError` of a `with` block that writes this file or folder by `CannotWrite`."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror or error}.") from error


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make a folder, which may exist already. Raises `CannotWrite`, also if its parent is missing without `parents`."""
    with naming(path):
        path.mkdir(parents=parents, exist_ok=True)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: a reader sees the old file or the new one. Temporary name, fsync, rename.

    Raises `CannotWrite`; then the old file is as it was, and no temporary file is left.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with naming(path):
            temporary.replace(path)
    except CannotWrite:
        temporary.unlink(missing_ok=True)
        raise


# --- reading ---


@contextmanager
def opened(path: Path, most: int = LARGEST, *, grows: bool = False) -> Iterator[BufferedReader]:
    """Open a regular file of at most `most` bytes for a `with` block that reads it. `grows`: lines may be added to it.

    Raises `OSError`, and `UsageError` if it is no such file, or is written anew while it is read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for a writer
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        os.close(descriptor)
        raise UsageError("it is no regular file")
    with open(descriptor, "rb") as file:
        _require_fitting(before.st_size, most)
        yield file
        after = os.fstat(descriptor)
        changed = (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)
        if after.st_size < before.st_size or (changed and not grows):
            raise UsageError("it was changed while it was read; try again when its writer has ended")


def content_of(path: Path, most: int = LARGEST, *, grows: bool = False) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz. Raises one of `UNREADABLE`."""
    with opened(path, most, grows=grows) as file:
        if path.suffix == ".gz":
            most = min(most, PACKED + 20 * os.fstat(file.fileno()).st_size)
        content = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(most + 1)
    _require_fitting(len(content), most)
    return content


def _require_fitting(size: int, most: int) -> None:
    if size > most:
        raise UsageError(f"{size:,} bytes; at most {most:,} are read. Split the file, or leave out what is not needed")


# --- one JSON object per line, to which a running process adds lines ---


_DECODER = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) < 19 else float(text))
"""Reads integers beyond 63 bits as floats: no number of a line is too large for a picture or an array."""


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file to which lines may be added; the last one may be cut off.

    One line is in memory at a time, so that the file may have `LONGEST` bytes. Raises one of `UNREADABLE`.
    """
    with opened(path, LONGEST, grows=True) as file:
        is_packed = path.suffix == ".gz"
        most = PACKED + 20 * os.fstat(file.fileno()).st_size if is_packed else LONGEST
        lines = gzip.GzipFile(fileobj=file) if is_packed else file
        size = 0
        while line := lines.readline(min(LARGEST, most - size + 1)):
            size += len(line)
            _require_fitting(size, most)
            yield line


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line with one call, so that a reader sees all of it or nothing.

    If a killed process left an unfinished line, this line is ended first; otherwise the new one would be lost, too.
    Raises `CannotWrite`.
    """
    with naming(path), path.open("a+b") as file:
        file.seek(max(file.tell() - 1, 0))
        begin = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(begin + as_lines([row]))


def as_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if the line was cut off, or is still being written."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = _DECODER.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    row.pop(OLD_CHECKSUM, None)
    return row
