"""Files that are written whole, and errors of the disk as sentences."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlcorr.errors import UsageError


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
