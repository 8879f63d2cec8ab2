"""Starting `python -m rlcorr` as a person would, and waiting for what it does."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(runs_folder: Path) -> dict[str, str]:
    return {**os.environ, "RLCORR_RUNS": str(runs_folder), "PYTHONUNBUFFERED": "1"}


def rlcorr(*arguments: str, runs_folder: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end."""
    command = [sys.executable, "-m", "rlcorr", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(runs_folder), timeout=timeout, check=False
    )


@contextmanager
def running(*arguments: str, runs_folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A verb in the background, with its output in a file; at the end of the block it is asked to stop, then killed.

    Started as a script starts `make play &`: with SIGINT ignored.
    """
    command = [sys.executable, "-m", "rlcorr", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(runs_folder),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(what: str, happened: Callable[[], bool], log: Path, seconds: float = 600) -> None:
    """Poll until it happened; fails with the log of the process."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what} did not happen in {seconds:.0f} s:\n{log.read_text(errors='replace')[-3000:]}"
            )
        time.sleep(0.05)


def url_in(log: Path) -> str | None:
    address = re.search(r"http://localhost:\d+", log.read_text(errors="replace"))
    return address[0] if address else None
