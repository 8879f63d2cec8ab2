"""`make play` as a process: ports, and Ctrl-C. Those of `make train` are in test_resume.py and test_batch_queue.py."""

import contextlib
import http.client
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import running, url_in, wait_for

from rlcorr.command import launch, play
from rlcorr.command.play import first_free_port
from rlcorr.records import runs
from rlcorr.records.verify import verify

pytestmark = pytest.mark.slow


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def options(model: Path) -> list[str]:
    """Return the options of a small training run that does not end by itself."""
    return [
        *("--model", str(model), "--rollout.engine", "transformers", "--rollout.dtype", "float32", "--run", "r"),
        *("--steps", "100000", "--prompts-per-step", "4", "--eval-prompts", "4"),
    ]


def steps_of(run: Path) -> int:
    return len(runs.list_steps(run))


def test_a_busy_port_gives_the_next_free_one(busy_port: int) -> None:
    assert first_free_port(busy_port) > busy_port


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_play_serves_trains_and_ends(
    ending: signal.Signals,
    tiny_model: Path,
    tmp_path: Path,
    busy_port: int,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what ignores it, such as nohup, hands that on
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    log, run = tmp_path / "log", tmp_path / "runs" / "local" / "r"
    with running(
        "play", "--port", str(busy_port), *options(tiny_model), runs_folder=tmp_path / "runs", log=log
    ) as play:
        wait_for("the address", lambda: url_in(log) is not None, log)
        url = url_in(log)
        assert url is not None
        assert f"port {busy_port} is busy" in log.read_text()
        wait_for("a live step", lambda: steps_of(run) > 0, log)
        wait_for("the app", lambda: _answers(f"{url}/_stcore/health"), log)
        os.kill(play.pid, ending)
        play.wait(300)
        assert play.returncode == 0
        assert not _answers(f"{url}/_stcore/health")
    report = verify(run)
    assert report.status == "interrupted"
    assert report.problems == []
    assert report.readable_steps == report.recorded_steps > 0
    monkeypatch.setattr(runs, "LOCAL", run.parent)
    assert not launch.in_progress(), "the trainer went on"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def answer(url: str, host: str) -> tuple[int, Message]:
    """Return status and headers of a request that names this host, as a browser does after DNS rebinding."""
    request = urllib.request.Request(url, headers={"Host": host})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def handshake(port: str, host: str, origin: str) -> int:
    """Return the status of the answer to a request for the websocket; 101 if it is opened."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    headers = {"Host": host, "Origin": origin, "Upgrade": "websocket", "Connection": "Upgrade"}
    headers |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version": "13"}
    with contextlib.closing(connection):
        connection.request("GET", "/_stcore/stream", headers=headers | {"Sec-WebSocket-Protocol": "streamlit"})
        return connection.getresponse().status


def test_only_named_hosts_are_answered_and_no_page_of_another_site_frames_the_app(
    tiny_model: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    arguments = ("play", "--no-train", "--port", "8620", "--host", "class.example", "--model", str(tiny_model))
    with running(*arguments, runs_folder=tmp_path, log=log) as app:
        wait_for("the address", lambda: url_in(log) is not None or app.poll() is not None, log)
        url = url_in(log)
        assert url is not None
        wait_for("the app", lambda: _answers(f"{url}/_stcore/health") or app.poll() is not None, log)
        port = url.rpartition(":")[2]
        for path in ("/", "/_stcore/host-config", "/drag/x", "/site/index.html"):
            assert answer(url + path, f"evil.example:{port}")[0] == 400, path
        for host in ("localhost", "127.0.0.1", "class.example"):
            status, headers = answer(url, f"{host}:{port}")
            assert status == 200
            assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
            assert "default-src 'self'" in headers["Content-Security-Policy"]
        for host in ("class.example", f"127.0.0.1:{port}"):  # a proxy keeps the browser's name of it, or gives its own
            assert handshake(port, host, "https://class.example") == 101, host
            assert handshake(port, host, "https://evil.example") == 403, host


@pytest.mark.parametrize(
    ("options", "hosts", "forbidden"), [([], (), "0"), (None, (), "1"), ([], ("class.example",), "1")]
)
def test_who_wants_no_training_gets_pages_without_it(
    monkeypatch: pytest.MonkeyPatch, options: list[str] | None, hosts: tuple[str, ...], forbidden: str
) -> None:
    seen = []

    def start(*_: Any, env: dict[str, str], **__: Any) -> SimpleNamespace:
        seen.append(env[launch.FORBID])
        return SimpleNamespace(pid=0, wait=lambda: 0)

    monkeypatch.delenv(launch.FORBID, raising=False)
    monkeypatch.setattr(play.subprocess, "Popen", start)
    for name in ("_train", "_stop", "_end_like_ctrl_c"):
        monkeypatch.setattr(play, name, lambda *_: None)
    monkeypatch.setattr(launch, "end", lambda _: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    assert play.play(8620, options, "mine", hosts) == 0
    for number, handler in before.items():
        signal.signal(number, handler)
    assert seen == [forbidden]


def test_a_file_is_imported_and_the_address_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"rollout_log_probs": [-1.0, -2.0], "old_log_probs": [-1.1, -2.2]}] * 4
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pages = []
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    monkeypatch.setattr(play, "play", lambda *arguments: pages.append(arguments[-1]) or 0)
    assert play.run_play(["--no-train", "--file", str(path)]) == 0
    assert pages == ["yours?run=imported_1"]
    assert int(runs.read_step(tmp_path / "local" / "imported_1", 1).batch.response_mask.sum()) == 8
