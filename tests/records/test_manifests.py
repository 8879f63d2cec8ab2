"""Manifests name no folder of the machine that wrote them, whoever wrote them."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pair_files import rows

from rlcorr.command.cli import main
from rlcorr.recorders import Recorder
from rlcorr.records import runs
from rlcorr.train.output.provenance import versions


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def assert_names_no_folder(run: Path) -> None:
    for text in texts(json.loads((run / "manifest.json").read_text(encoding="utf-8"))):
        assert not Path(text).is_absolute(), text
        assert not [folder for folder in (str(Path.home()), tempfile.gettempdir(), str(run.parent)) if folder in text]


def succeeds(*words: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 0


def test_committed_runs() -> None:
    committed = [path.parent for path in runs.ROOT.glob("*/manifest.json")]
    assert len(committed) > 10
    for run in committed:
        assert_names_no_folder(run)


def test_an_import(tmp_path: Path, local_runs: Path) -> None:
    files = [tmp_path / f"step_{step}.jsonl" for step in (1, 2)]
    for file in files:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    succeeds("import", *map(str, files), "--run", "mine")
    assert_names_no_folder(local_runs / "mine")


def test_a_recorder(tmp_path: Path) -> None:
    pair = {name: torch.full((2, 3), -1.0) for name in ("rollout_log_probs", "old_log_probs")}
    with Recorder("mine", folder=tmp_path) as recorder:
        recorder.add(step=1, batch=pair)
    assert_names_no_folder(tmp_path / "mine")


def test_a_run_on_a_gpu_has_the_version_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nprintf '580.65.06\\n580.65.06\\n'\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not versions().keys() & {"cuda", "driver"}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert versions()["driver"] == "580.65.06"
    assert versions()["cuda"] == str(torch.version.cuda)
