"""`make play` and `make train` as processes: ports, Ctrl-C, and kill -9."""

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import running, url_in, wait_for

from rlcorr.command import launch
from rlcorr.command.cli import main
from rlcorr.command.play import first_free_port
from rlcorr.errors import UsageError
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
    """A training that is small, and does not end by itself."""
    return [
        *("--model", str(model), "--rollout.engine", "transformers", "--rollout.dtype", "float32", "--run", "r"),
        *("--steps", "100000", "--prompts-per-step", "4", "--eval-prompts", "4"),
    ]


def steps_of(run: Path) -> int:
    return len(runs.list_steps(run))


def test_a_busy_port_gives_the_next_free_one(busy_port: int) -> None:
    assert first_free_port(busy_port) > busy_port


def test_no_free_port_is_said(busy_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcorr.command.play.PORTS_TO_TRY", 1)
    with pytest.raises(UsageError, match=f"no free port from {busy_port}"):
        first_free_port(busy_port)


def test_play_serves_trains_and_ends_with_ctrl_c(
    tiny_model: Path, tmp_path: Path, busy_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        os.kill(play.pid, signal.SIGINT)
        play.wait(60)
        assert play.returncode == 0
        assert not _answers(f"{url}/_stcore/health")
    report = verify(run)
    assert report.status == "interrupted"
    assert report.problems == []
    assert report.readable_steps == report.recorded_steps > 0
    monkeypatch.setattr(runs, "LOCAL", run.parent)
    assert not launch.in_progress(), "the trainer went on after Ctrl-C"


def test_kill_9_leaves_every_completed_step_readable(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills at other moments are in test_resume.py."""
    run, log = tmp_path / "local" / "r", tmp_path / "log"
    with running("train", *options(tiny_model), runs_folder=tmp_path, log=log) as trainer:
        wait_for("three steps", lambda: steps_of(run) >= 3, log)
        trainer.kill()
        trainer.wait()
    report = verify(run)
    assert report.readable_steps == report.recorded_steps >= 3
    assert report.metric_rows >= report.recorded_steps - 1  # the row of a step is written right after its pairs
    assert report.status == "running"
    assert len(report.problems) == 1
    assert "was killed" in report.problems[0]
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run)])
    assert ended.value.code == 1
    assert "was killed" in capsys.readouterr().out


def test_ctrl_c_on_the_trainer_finishes_the_manifest(tiny_model: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "local" / "r", tmp_path / "log"
    with running("train", *options(tiny_model), runs_folder=tmp_path, log=log) as trainer:
        wait_for("a step", lambda: steps_of(run) >= 1, log)
        trainer.send_signal(signal.SIGINT)
        assert trainer.wait(60) == 130
    assert "Traceback" not in log.read_text()
    report = verify(run)
    assert (report.status, report.problems) == ("interrupted", [])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False
