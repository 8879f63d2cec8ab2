"""Wrong input is one line on stderr and exit code 2, without a traceback."""

import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pair_files import jsonl, rows
from step_records import make_run

from rlcorr.command.cli import main, run_verb
from rlcorr.command.doctor import Check, Doctor, examine, run_doctor
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


# --- doctor ---


def check_of(subject: str) -> Check:
    return next(finding for finding in examine() if finding.subject == subject)


def test_one_line_per_finding(capsys: pytest.CaptureFixture[str]) -> None:
    run_doctor(Doctor())
    subjects = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert subjects == ["python", "packages", "device", "engine", "disk", "model"]
    assert torch.__version__ in check_of("packages").state


def test_what_is_missing_has_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "make clean setup" in check_of("device").fix
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert "pretrain" in check_of("model").fix
    assert run_doctor(Doctor()) == 1


# --- The verb `config`: what it prints, and one sentence for what it cannot read ---


def test_a_file_becomes_the_correction_and_says_what_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "trainer: {lr: 1}\nalgorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 3.5}}\n"
    )
    assert run_verb(["config", str(file)]) == 0
    assert capsys.readouterr().out == (
        "# verl\nfrom rlcorr import CorrectionConfig\n\nconfig = CorrectionConfig(\n    rollout_is='token',\n"
        "    rollout_is_threshold=3.5,\n)\n\nRead:\n"
        "  algorithm.rollout_correction.rollout_is = token: level of the weights\n"
        "  algorithm.rollout_correction.rollout_is_threshold = 3.5: bound on the weights; a pair sets weights outside "
        "it to 0\nIgnored: 1 key is not about the correction: trainer.lr.\n"
    )


def test_a_preset_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "--vllm_importance_sampling_mode sequence_mask --a 1 --b 2 --c 3 --d 4 --e 5 --f 6"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run_verb(["config", "-", "--system", "trl"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# TRL; equal to the preset trl_sequence_mask\nfrom rlcorr import preset\n")
    assert out.endswith("Ignored: 6 keys are not about the correction: a, b, c, d, e, ….\n")


def test_a_loss_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "verl.yaml"
    file.write_text("bypass_mode: true\nloss_type: reinforce\nscore_centering: true\n")
    assert run_verb(["config", str(file)]) == 0
    out = capsys.readouterr().out
    assert 'preset("bypass_pg_sc")\nloss = LossConfig(score_centering=True)\n' in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"rollout_is: tokens", "unknown rollout_is of verl"), (b"\xff\xfe", "is not text in UTF-8"), (None, "No such")],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    file = tmp_path / "wrong"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main(["config", str(file)])
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
