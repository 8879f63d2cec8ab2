import shutil
from pathlib import Path

import pytest

from rlcorr.command import doctor as doctor_module
from rlcorr.command.doctor import Doctor, examine, run_doctor
from rlcorr.records import runs


def check_of(subject: str) -> doctor_module.Check:
    return next(finding for finding in examine() if finding.subject == subject)


def test_one_line_per_finding(capsys: pytest.CaptureFixture[str]) -> None:
    run_doctor(Doctor())
    subjects = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert subjects == ["python", "packages", "device", "engine", "memory", "disk", "port", "model"]


def test_it_names_what_is_installed() -> None:
    import torch

    assert torch.__version__ in check_of("packages").state


def test_a_missing_warm_start_has_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert "pretrain" in check_of("model").fix
    assert run_doctor(Doctor()) == 1


def test_no_engine_is_said_and_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_version", lambda package: None if "vllm" in package else "1")
    engine = check_of("engine")
    assert "transformers will sample" in engine.state
    assert not engine.fix


def test_little_memory_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_free_gib", lambda: 1.5)
    assert check_of("memory").fix == "close something: 4 GiB are needed"


def test_a_cpu_torch_beside_an_nvidia_driver_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "make clean setup" in check_of("device").fix
