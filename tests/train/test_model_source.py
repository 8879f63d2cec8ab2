"""Where a model comes from: directories, the cache of the hub, a download, and no hub at all."""

import fnmatch
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from rlcorr.errors import UsageError
from rlcorr.train.inputs.model_source import check_model, missing_files, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def write_cache(cache: Path, hub_id: str, files: dict[str, str]) -> Path:
    """A model in the layout of the hub's cache."""
    home = cache / f"models--{hub_id.replace('/', '--')}"
    write(home / "refs", {"main": COMMIT})
    return write(home / "snapshots" / COMMIT, files)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no way to the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_directory_is_its_own_source(tiny_model: Path) -> None:
    assert resolve_model(str(tiny_model)) == tiny_model
    assert missing_files(tiny_model) == []


@pytest.mark.parametrize("name", ["nowhere", "./nowhere/at/all", "/nowhere", "a/b/c", "../model", "org/"])
def test_what_cannot_be_a_model_is_refused_without_a_network(name: str) -> None:
    with pytest.raises(UsageError, match=r"^no model at \S*: it must hold config\.json\..*Qwen/"):
        check_model(name)


def test_a_directory_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "org" / "name", {})
    with pytest.raises(UsageError, match=r"no model at org/name: it must hold config\.json"):
        resolve_model("org/name")
    write(tmp_path / "org" / "name", {"config.json": "{}"})
    assert resolve_model("org/name") == Path("org/name")


def test_a_cached_model_needs_no_network(cache: Path) -> None:
    folder = write_cache(cache, "org/name", MODEL)
    assert resolve_model("org/name") == folder


def test_every_shard_of_the_index_must_be_there(cache: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    sharded = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors.index.json": json.dumps(index)}
    folder = write_cache(cache, "org/name", {**sharded, "model-1.safetensors": ""})
    assert missing_files(folder) == ["model-2.safetensors"]
    with pytest.raises(UsageError, match=r"^model org/name is neither a directory nor in the hub's cache"):
        resolve_model("org/name")
    write(folder, {"model-2.safetensors": ""})
    assert resolve_model("org/name") == folder


def test_a_download_brings_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(huggingface_hub, "model_info", lambda hub_id, timeout: None)
    asked: list[str] = []

    def download(hub_id: str, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return str(write(tmp_path / "downloaded", MODEL))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("org/name") == tmp_path / "downloaded"
    files = ["config.json", "model-1.safetensors", "tokenizer.json", "pytorch_model.bin", "onnx/model.safetensors"]
    wanted = [any(fnmatch.fnmatch(file, pattern) for pattern in asked) for file in files]
    assert wanted == [True, True, True, False, False]


@pytest.mark.slow
def test_a_silent_network_is_given_up(tmp_path: Path) -> None:
    """A server takes connections and never says a word. In a process of its own: the hub's client reads its settings
    from the environment once."""
    script = "from rlcorr.train.inputs.model_source import resolve_model; resolve_model('org/name')"
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith(("HF_", "HTTP"))}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HOME": str(tmp_path / "hf")}
        process = subprocess.run(
            [sys.executable, "-c", script], env=others | address, capture_output=True, text=True, timeout=60
        )  # its time limit is the assertion
    last = process.stderr.splitlines()[-1]
    assert last.startswith("rlcorr.errors.UsageError: model org/name is neither a directory nor in the hub's cache")
    assert "run `hf download org/name` where there is internet." in last
