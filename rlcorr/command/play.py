"""`make play`: a trainer in the background, the app in front, and one Ctrl-C that ends both."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rlcorr
from rlcorr.command import launch
from rlcorr.errors import UsageError

ROOT = Path(rlcorr.__file__).resolve().parent.parent
"""Streamlit reads .streamlit/config.toml, the theme, from the folder it is started in."""
PORTS_TO_TRY = 50
GRACE = 20.0
"""Seconds that a process gets to end by itself before it is killed."""


def play(port: int, train_options: Sequence[str] | None, run: str = "") -> int:
    """Serve the app on the first free port from `port`, and train `run` with these options (None: only the app).

    Returns the app's exit code. Ctrl-C or SIGTERM ends both, and a training that was started from a page.
    """
    free = first_free_port(port)
    if free != port:
        print(f"port {port} is busy; using {free}.")
    app = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app = subprocess.Popen(_app_command(free), start_new_session=True, cwd=ROOT)
        print(f"rlcorr: http://localhost:{free}  (Ctrl-C ends the app and the training)", flush=True)
        if train_options is not None:
            _train(train_options, run)
        return app.wait()
    except KeyboardInterrupt:
        print("\nstopping; the run stays readable.")
        return 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave a trainer behind
        if app is not None:
            launch.end({os.getpid(), app.pid})
            _stop(app)


def _train(options: Sequence[str], run: str) -> None:
    """In the background, where every page sees it. One that is in progress already goes on instead."""
    try:
        launch.launch(options, run, log=False)
    except UsageError as error:
        print(f"rlcorr: {error}", flush=True)


def first_free_port(start: int) -> int:
    """Raises `UsageError` if none of the next fifty is free."""
    for port in range(start, min(start + PORTS_TO_TRY, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UsageError(f"no free port from {start} to {start + PORTS_TO_TRY - 1}; name another with --port.")


def _app_command(port: int) -> list[str]:
    if importlib.util.find_spec("streamlit") is None:
        raise UsageError("streamlit is not installed; run `make setup`.")
    return [
        *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "server.py")),
        *("--server.address", "127.0.0.1", "--server.port", str(port), "--server.headless", "true"),
        *("--browser.gatherUsageStats", "false"),
    ]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGINT first; SIGKILL for what does not listen."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
