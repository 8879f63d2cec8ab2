"""`python -m rlcorr play` (`make play`): a training run in the background and the app; one Ctrl-C ends both."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

import rlcorr
from rlcorr.command import launch
from rlcorr.command.import_ import Import, run_import
from rlcorr.command.train import train_config
from rlcorr.errors import UsageError, require_extra
from rlcorr.records import runs

INSTALL_FOLDER = Path(rlcorr.__file__).resolve().parent.parent
"""The folder that contains the package: a clone of the repository, or site-packages."""
OWN_HOSTS = ("localhost", "127.0.0.1")
"""Names under which browsers may ask for the app. Otherwise a page of another site, whose name it lets point to this
machine (DNS rebinding), could read the runs and start training."""
PROGRAM = "python -m rlcorr play"
PORTS_TO_TRY = 50
GRACE = 20.0
"""Seconds in which a process may end by itself before it is killed."""


@dataclass(frozen=True)
class Play:
    """Serve the app and train in the background, until Ctrl-C. Takes the options of `train`, too."""

    port: int = 8501
    """First port to try."""
    train: bool = True
    """Train in the background; --no-train only serves the app, and its pages offer no training."""
    host: tuple[str, ...] = ()
    """Other names under which browsers may ask for the app, as behind a proxy; localhost and 127.0.0.1 always may."""
    file: tuple[str, ...] = ()
    """Files of your own log-prob pairs to import first, as `import` does, and to open on the page “Your data”."""


def run_play(words: list[str]) -> int:
    """Import the files if there are any, play, and return the exit code."""
    request, train_words = tyro.cli(Play, args=words, prog=PROGRAM, return_unknown_args=True)
    config = train_config(train_words, PROGRAM)  # refuses a wrong option here, not in the background
    run, page = config.run or runs.free_name(config.run_prefix), ""
    if request.file:
        imported = runs.free_name("imported")
        run_import(Import(request.file, imported))
        page = f"yours?run={imported}"
    return play(request.port, train_words if request.train else None, run, request.host, page)


def play(
    port: int, train_options: Sequence[str] | None, run: str = "", hosts: Sequence[str] = (), page: str = ""
) -> int:
    """Serve the app, train a run next to it, and return the app's exit code.

    Ctrl-C, SIGTERM or a closed terminal ends both, and a training run that was started from a page.

    Args:
        port: the first port to try.
        train_options: options of `python -m rlcorr train`; None: serve only the app.
        run: name of the run.
        hosts: names under which browsers may ask for the app, besides `OWN_HOSTS`.
        page: the page that the printed address opens, with its query.
    """
    free = first_free_port(port)
    if free != port:
        print(f"port {port} is busy; using {free}.")
    app = None
    _end_like_ctrl_c(signal.SIGTERM, signal.SIGHUP)  # the latter is a closed terminal
    try:
        # Other people's pages must not start training, and whoever says --no-train wants none.
        variables = {launch.FORBID: "1" if hosts or train_options is None else "0"} | os.environ
        app = subprocess.Popen(_app_command(free, hosts), start_new_session=True, env=variables)
        base = os.environ.get("STREAMLIT_SERVER_BASE_URL_PATH", "").strip("/")  # a sub-path, as behind a proxy
        address = "/".join(filter(None, (f"http://localhost:{free}", base, page)))
        print(f"rlcorr: {address}  (Ctrl-C ends the app and the training run)", flush=True)
        if train_options is not None:
            _train(train_options, run)
        return app.wait()
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            print("\nstopping; the run remains readable.", flush=True)
        return 0
    finally:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a second one must not leave a trainer behind
            signal.signal(ending, signal.SIG_IGN)
        if app is not None:
            launch.end({os.getpid(), app.pid})
            _stop(app)


def _end_like_ctrl_c(*endings: signal.Signals) -> None:
    for ending in endings:
        if signal.getsignal(ending) != signal.SIG_IGN:  # as nohup does
            signal.signal(ending, signal.default_int_handler)


def _train(options: Sequence[str], run: str) -> None:
    """Start a training run in the background. If one is in progress already, it continues instead."""
    try:
        launch.start(options, run, log=False)
    except UsageError as error:
        print(f"rlcorr: {error}", flush=True)


def first_free_port(start: int) -> int:
    """Return the first free port. Raises `UsageError` if none of `PORTS_TO_TRY` ports is free."""
    for port in range(start, min(start + PORTS_TO_TRY, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UsageError(f"no free port from {start} to {start + PORTS_TO_TRY - 1}; name another with --port.")


def _app_command(port: int, hosts: Sequence[str]) -> list[str]:
    require_extra("app", "streamlit", "plotly", "markdown_it")
    packaged = INSTALL_FOLDER / "rlcorr_app"  # the name of the app in a wheel
    app = packaged if packaged.is_dir() else INSTALL_FOLDER / "app"
    return [
        *(sys.executable, "-m", "streamlit", "run", str(app / "server.py")),
        *("--server.address", "127.0.0.1", "--server.port", str(port), "--server.headless", "true"),
        *("--browser.gatherUsageStats", "false"),
        *(word for host in (*OWN_HOSTS, *hosts) for word in ("--server.allowedHosts", host)),
        # A proxy may pass its own name on as the host: then the page's origin is another one.
        *(word for host in hosts for word in ("--server.corsAllowedOrigins", host)),
    ]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGINT, and with SIGKILL if it is still alive after `GRACE` seconds."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
