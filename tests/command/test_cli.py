"""Wrong input is one line on stderr and exit code 2, without a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pair_files import jsonl, rows
from step_records import make_run

from rlcorr.command.cli import main
from rlcorr.records import runs
from rlcorr.records.verify import verify


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "got", "exists"),
    [
        (["train", "--preset", "decoupled_token_iss"], "'decoupled_token_iss'", "decoupled_token_is,"),
        (["train", "--task", "adition"], "'adition'", "addition, "),
        (["train", "--model", "no/such/model"], "no/such/model", "config.json"),
        (["train", "--rollout.temperature", "0"], "0", "> 0"),
        (["verify", "no_such_run"], "'no_such_run'", "Known:"),
        (["play", "--task", "adition"], "'adition'", "addition, "),
        (["trian"], "'trian'", "train"),
    ],
)
def test_a_wrong_name_is_one_line(
    arguments: list[str], got: str, exists: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert got in error
    assert exists in error


def test_no_verb_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in ("play", "train", "pretrain", "verify", "doctor"))


@pytest.mark.slow
def test_the_command_line_starts_without_transformers() -> None:
    check = "import rlcorr.command.cli, sys; sys.exit('transformers' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_verify_names_the_damaged_file_and_what_is_left(local_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = local_runs / "example"
    make_run(run)
    assert call("verify", "example") == 0
    assert "3 of 3 recorded steps readable, 3 rows of metrics; no problem" in capsys.readouterr().out
    damaged = runs.step_path(run, 2)
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert call("verify", str(run)) == 1
    printed = capsys.readouterr().out
    assert "step_000002.parquet: cannot be read" in printed
    assert "2 of 3 recorded steps readable" in printed


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make attack ARGS=disks` fills a real one."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "pairs.jsonl"
    file.write_bytes(jsonl(rows()))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert call("import", str(file), "--run", "mine") == 2
    error = capsys.readouterr().err
    assert error.startswith("rlcorr: ")
    assert error.endswith("cannot be written: No space left on device.\n")
    assert [*local_runs.iterdir()] == []
    assert call("import", str(file), "--run", "mine") == 0
    assert verify(local_runs / "mine").problems == []
