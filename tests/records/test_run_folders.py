"""One writer per run, and runs that appear whole: with real processes and a real SIGKILL."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from step_records import make_run

from rlcorr.errors import UsageError
from rlcorr.recorders import Recorder
from rlcorr.records import runs
from rlcorr.records.run_folders import only_writer, whole_directory

HOLD = """
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock
from rlcorr.records.run_folders import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_first_one_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "a_run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="a_run is being written by another process"), only_writer(run):
            pass
        holder.send_signal(signal.SIGKILL)
    with only_writer(run), pytest.raises(UsageError, match="written by another process"), only_writer(run):
        pass
    with only_writer(run):  # the lock ends with the block
        assert [*run.iterdir()] == []  # and leaves no file


def test_a_name_that_no_run_may_have(tmp_path: Path) -> None:
    for name in ("../x", "..", ".hidden", "a\nb", "x" * 300, ""):
        with pytest.raises(UsageError, match="the name of a run must be plain") as refused:
            Recorder(name, folder=tmp_path)
        assert len(str(refused.value)) < 250, name


def test_a_folder_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROOT", tmp_path / "none")
    monkeypatch.setattr(runs, "LOCAL", tmp_path)
    with whole_directory(tmp_path / "a_run") as unnamed:
        make_run(unnamed)
        assert runs.list_runs() == {}
    assert list(runs.list_runs()) == ["a_run"]
    with pytest.raises(UsageError, match="already contains a run"), whole_directory(tmp_path / "a_run"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a_run"]


def import_over(run: Path) -> None:
    with whole_directory(run) as unnamed:
        make_run(unnamed)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, UsageError])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("step_records.runs.finish_run", Mock(side_effect=error))
    with pytest.raises(error):
        import_over(tmp_path / "a_run")
    assert [*tmp_path.iterdir()] == []


def test_what_a_kill_has_left_is_deleted_later(tmp_path: Path) -> None:
    """Check an old hidden folder that is locked, one that is not, a young one, and one that is somebody else's."""
    names = [f".{digit * 32}" for digit in "abc"] + [".git"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps").mkdir()
        if "c" not in name:
            os.utime(tmp_path / name, (0, 0))
    with only_writer(tmp_path / names[0]), whole_directory(tmp_path / "a_run") as unnamed:
        make_run(unnamed)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[0], *names[2:], "a_run"])
