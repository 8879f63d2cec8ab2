"""The folder of a run: only one process writes it, or it appears whole."""

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.disk import make_folder, naming

LONGEST_NAME = 100
"""Characters of a run's name. File systems allow 255 bytes, and study and temporary names add some."""

ABANDONED = 60.0
"""Seconds after which a hidden folder must have its lock: it is made a moment before."""


def require_run_name(name: str) -> None:
    """Raise `UsageError` unless a run may have this name: plain, printable, not hidden and not too long."""
    plain = Path(name).name == name and name.isprintable() and not name.startswith(".")
    if not plain or not 0 < len(name) <= LONGEST_NAME:
        raise UsageError(
            f"the name of a run must be plain: printable, without folders, not beginning with a dot, and of at most "
            f"{LONGEST_NAME} characters; got {name!r:.60}."
        )


@contextmanager
def only_writer(run: Path) -> Iterator[None]:
    """Take the lock of a run for a `with` block. The folder is made if it is missing.

    The lock is on the folder itself. The system releases it when the process ends, however it ends. Raises `UsageError`
    if another process writes the run.
    """
    make_folder(run, parents=True)
    folder = os.open(run, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{run} is being written by another process: wait for its end, or choose another name."
            ) from error
        yield
    finally:
        os.close(folder)


@contextmanager
def whole_directory(run: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the run's, and give it the run's name when the `with` block ends.

    After any error the folder is deleted, and after a kill by the next call. Raises `UsageError` if a run is there
    already, or is being written, at the start or at the end.
    """
    runs.refuse_existing(run)
    _remove_abandoned(run.parent)
    folder = run.with_name(f".{uuid.uuid4().hex}")
    with only_writer(folder):
        try:
            yield folder
            _give_name(folder, run)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _give_name(folder: Path, run: Path) -> None:
    """Give a whole folder its name. The lock keeps out a training run, whose folder is empty at first."""
    with only_writer(run):
        try:
            runs.refuse_existing(run)
            with naming(run):
                folder.rename(run)
        except UsageError:
            with suppress(OSError):  # not empty: it is somebody's
                run.rmdir()
            raise


def _remove_abandoned(parent: Path) -> None:
    """Delete hidden folders whose process was killed: they are old and nobody has their lock."""
    hidden = [folder for folder in parent.glob(".*") if re.fullmatch(r"\.[0-9a-f]{32}", folder.name)]
    for folder in hidden:
        with suppress(UsageError, FileNotFoundError):  # it is written, or has just got its name
            if time.time() - folder.stat().st_mtime > ABANDONED:
                with only_writer(folder):
                    shutil.rmtree(folder, ignore_errors=True)
