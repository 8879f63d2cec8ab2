"""The folder of a run: only one process writes it, or it appears whole."""

import errno
import fcntl
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.disk import content_of, make_folder, naming

LONGEST_NAME = 100
"""Characters of a run's name. File systems allow 255 bytes, and study and temporary names add some."""

ABANDONED = 60.0
"""Seconds after which a hidden folder must have its lock: it is made a moment before."""

NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without flock, such as Lustre mounted without `-o flock`, or NFS without its lock daemon."""
_descriptors: set[int] = set()
"""Locks of this process. A child closes them, else it would keep them after the death of its parent."""


def _close_in_child() -> None:
    while _descriptors:
        os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_close_in_child)


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
    """Take the lock of a run for a `with` block, see `take_lock`."""
    release = take_lock(run)
    try:
        yield
    finally:
        release()


def take_lock(run: Path) -> Callable[[], None]:
    """Take the lock of a run, and return the function that releases it. The folder is made if it is missing.

    The lock is on the folder itself. The system releases it when the process ends, however it ends. On NFS and Lustre
    it is only among the processes of one machine. Where the file system has no locks, a file is the lock. Raises
    `UsageError` if another process writes the run.
    """
    is_new = not run.is_dir()
    make_folder(run, parents=True)
    with ExitStack() as undo, naming(run):
        if is_new:
            undo.callback(_remove_empty, run)
        descriptor = os.open(run, os.O_RDONLY)
        _descriptors.add(descriptor)
        undo.callback(_close, descriptor, os.getpid())
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{run} is being written by another process: wait for its end, or choose another name."
            ) from error
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            file = _make_lock_file(run)
            undo.callback(_remove, file, os.getpid())
        return undo.pop_all().close


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty: it has become a run
        folder.rmdir()


def _close(descriptor: int, process: int) -> None:
    if os.getpid() == process:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _remove(file: Path, process: int) -> None:
    if os.getpid() == process:
        with suppress(OSError):
            file.unlink()


def _make_lock_file(run: Path) -> Path:
    """Make the file `.NAME.lock`, which says who writes the run, and return it. One of a dead process is replaced."""
    file, owner = run.with_name(f".{run.name}.lock"), (socket.gethostname(), os.getpid())
    with suppress(OSError, ValueError, UsageError):
        host, process, start = content_of(file).decode().split()
        if host == owner[0] and start != start_of(int(process)):
            file.unlink()
    try:
        with file.open("x", encoding="utf-8") as opened:
            try:
                opened.write(f"{owner[0]} {owner[1]} {start_of(owner[1])}")
                opened.flush()
            except OSError:
                file.unlink()
                raise
    except FileExistsError as error:
        raise UsageError(
            f"{run} is being written by another process, says {file}: wait for its end, choose another name, or delete "
            "that file if no process of any machine writes the run."
        ) from error
    return file


def start_of(process: int) -> str:
    """Return when a process started, in the words of the system; "gone" if there is none."""
    try:
        os.kill(process, 0)
        # The name of the program is in brackets, and may have spaces and brackets.
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except ProcessLookupError:
        return "gone"
    except OSError:
        return "unknown"  # no Linux, or a process of another user


@contextmanager
def whole_directory(run: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the run's, and give it the run's name when the `with` block ends.

    After any error the folder is deleted, and after a kill by the next call. Raises `UsageError` if a run is there
    already, or is being written, at the start or at the end.
    """
    runs.refuse_existing(run)
    remove_abandoned(run.parent, r"\.[0-9a-f]{32}")
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
        runs.refuse_existing(run)
        with naming(run):
            folder.rename(run)


def remove_abandoned(parent: Path, names: str) -> None:
    """Delete folders of these names (a regex) whose process was killed: they are old and nobody has their lock."""
    for folder in (folder for folder in parent.glob("*") if re.fullmatch(names, folder.name)):
        with suppress(UsageError, FileNotFoundError):  # it is written, or has just got its name
            if time.time() - folder.stat().st_mtime > ABANDONED:
                with only_writer(folder):
                    shutil.rmtree(folder, ignore_errors=True)
