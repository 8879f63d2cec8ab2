"""Files of other people, parsed in a process of its own with limits of memory and time (`parse`).

Whatever a file makes of the libraries that parse it (a crash, gigabytes of zeros, hours), the process ends and this one
raises one sentence. A process that has read a file without an error reads the next one, because starting
takes much longer than reading a small file.
"""

import atexit
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

import rlcorr
from rlcorr.errors import UsageError
from rlcorr.foreign.parse.request import FACTS, OUT_OF_MEMORY, Piece, Request

SECONDS = 60
"""Time of the processor that a file may take, and one second more for every MiB of it."""
_PATIENCE = 4
"""Longest wait for the next piece, in these times: other programs may keep the processor busy."""
# An empty package in the place of rlcorr, which would import torch.
START = """
import sys, types
package = types.ModuleType("rlcorr")
package.__path__ = [sys.argv[1]]
sys.modules["rlcorr"] = package
from rlcorr.foreign.parse.program import main
main()
"""
_VARIABLES = {
    "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
"""Libraries reserve less memory with these, so that the limit counts what a file takes."""
_WAY_OUT = "Split the file, leave out the columns that are not needed, or write it again as Parquet"
_idle: list[subprocess.Popen[bytes]] = []
"""At most one process, which waits for the next file."""
_busy: set[subprocess.Popen[bytes]] = set()
"""The others. Garbage of a reader that was left in the middle thus never holds a process that nobody has ended."""
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_idle.clear)  # its pipe belongs to this process


def seconds_for(size: int) -> int:
    """Return the time of the processor that a file of this size may take."""
    return SECONDS + (size >> 20)


def parsed(request: Request) -> Iterator[Piece]:
    """Yield the pieces of a file, except the end.

    Raises `UsageError` if the file is damaged, and if reading it takes too much memory or time or ends the process.
    """
    try:
        process = _idle.pop()
    except IndexError:
        process = _start()
    _busy.add(process)
    is_sound = False
    try:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # then the first answer is missing, too
            pickle.dump(request, process.stdin)
            process.stdin.flush()
        facts, table = _next_piece(process, request.seconds)
        while "end" not in facts and "refused" not in facts:
            yield facts, table
            facts, table = _next_piece(process, request.seconds)
        is_sound = True
        if "refused" in facts:
            raise UsageError(facts["refused"])
    finally:
        if is_sound and not _idle:
            _idle.append(process)
        else:
            _end(process)
        _busy.discard(process)


def _start() -> subprocess.Popen[bytes]:
    if sys.platform == "win32":
        warnings.warn("On Windows files are read with a limit of time only, not of memory.", stacklevel=4)
    package = str(Path(rlcorr.__file__).parent)
    return subprocess.Popen(
        # -P: nothing is imported from the folder of the files.
        [sys.executable, "-P", "-W", "ignore", "-c", START, package],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | _VARIABLES,
    )  # fmt: skip


def _next_piece(process: subprocess.Popen[bytes], seconds: int) -> Piece:
    """Return the next piece. Raises `UsageError` if the process ends instead, or none comes in time."""
    assert process.stdout is not None
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(_PATIENCE * seconds, stop)
    timer.start()
    try:
        with pa.ipc.open_stream(process.stdout) as stream:
            table = stream.read_all()
        return json.loads(table.schema.metadata[FACTS]), table
    except (pa.ArrowInvalid, OSError) as error:
        raise _why_it_ended(process, late, seconds) from error
    finally:
        timer.cancel()


def _why_it_ended(process: subprocess.Popen[bytes], late: threading.Event, seconds: int) -> UsageError:
    process.kill()  # if it has ended, nothing happens
    code = process.wait()
    if late.is_set() or (sys.platform != "win32" and code == -signal.SIGXCPU):
        return UsageError(f"takes more than {seconds} s to read. {_WAY_OUT}.")
    if code == OUT_OF_MEMORY:
        return UsageError(f"takes far more memory to read than its size. {_WAY_OUT}.")
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace").strip().splitlines()[-1:] or [f"status {code}"]
    return UsageError(f"ends the process that reads it ({said[0]:.200}): it is damaged or too large. {_WAY_OUT}.")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        with suppress(OSError):  # what is left of a request cannot be written any more
            pipe.close()


@atexit.register
def end_idle() -> None:
    """End the process that waits for the next file."""
    while _idle:
        _end(_idle.pop())
