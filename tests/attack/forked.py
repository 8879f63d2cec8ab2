"""Commands as processes that are forked from this one, which has imported everything: they start at once.

What is forked may not have threads. So a module that forks imports torch, and computes nothing with it.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


class Forked:
    """A process that calls a function, with its output in a file."""

    def __init__(self, call: Callable[[], object], log: Path) -> None:
        self.log = log
        self._code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run(call, log)

    def poll(self) -> int | None:
        """Return the exit code, −9 after SIGKILL; None if it is still running."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, seconds: float) -> int | None:
        """Return the exit code. After these seconds the process is killed, and the result is None."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.end()
                return None
            time.sleep(0.01)
        return self._code

    def kill(self) -> None:
        """End the process with SIGKILL, unless it has ended. What it started goes on, as after a real kill."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """End the process, and what it started, with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def error(self) -> str:
        """Return what was printed on stderr."""
        return self.log.with_suffix(".err").read_text(errors="replace")


def _run(call: Callable[[], object], log: Path) -> None:
    """Call the function in this process, which ends with it."""
    code = 1
    try:
        os.setpgid(0, 0)
        for path, stream in ((log, 1), (log.with_suffix(".err"), 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        call()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def verb(*words: str, log: Path) -> Forked:
    """Start a verb of the command line."""
    from rlcorr.command.cli import main

    return Forked(lambda: main(list(words)), log)


def finished(*words: str, log: Path, seconds: float = 300) -> tuple[int | None, str]:
    """Run a verb, and return its exit code and what it printed on stderr; None if it did not end in time."""
    process = verb(*words, log=log)
    code = process.wait(seconds)
    process.end()
    return code, process.error()
