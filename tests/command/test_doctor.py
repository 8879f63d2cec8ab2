import shutil
from pathlib import Path

import pytest
import torch

from rlcorr.command.doctor import Check, Doctor, examine, run_doctor
from rlcorr.records import runs


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
