"""Manifests name no folder of the machine that wrote them, whoever wrote them."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pair_files import rows
from tiny import tiny_config

from rlcorr.command.cli import main
from rlcorr.recorders import Recorder
from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.loop import train


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


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path) -> TrainConfig:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": "1"}) + "\n" for n in range(40)))
    return tiny_config(tiny_model, task="jsonl", data=file, max_response_tokens=4)


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


def test_a_configuration(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in the runs folder is relative to it, a path elsewhere is its name, and an id on the hub stays."""
    plain = config.as_dict()
    assert plain["data"] == "prompts.jsonl"
    assert plain["model"] == Path(config.model).name
    monkeypatch.chdir(config.model)
    assert replace(config, model=".").as_dict()["model"] == Path(config.model).name
    assert TrainConfig().as_dict()["model"] == "warm_start/checkpoint"
    assert replace(config, model="Qwen/Qwen2.5-0.5B").as_dict()["model"] == "Qwen/Qwen2.5-0.5B"


def test_a_training_run_that_is_resumed(config: TrainConfig, local_runs: Path) -> None:
    """Resume with the paths of config.yaml, which the manifest does not have."""
    run = train(replace(config, checkpoint_every=1))
    assert_names_no_folder(run)
    succeeds("train", "--resume", "tiny", "--steps", "3")
    assert_names_no_folder(run)
    assert [row["step"] for row in runs.read_metrics(run)] == [1, 2, 3]
    assert runs.read_manifest(run).status == "complete"
