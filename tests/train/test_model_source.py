"""Where a model comes from: directories, the hub's cache, a hub of our own, and no hub at all."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


def test_a_hub_id_is_accepted_before_it_is_looked_up() -> None:
    check_model("Qwen/Qwen2.5-0.5B-Instruct")


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


@pytest.mark.parametrize("name", ["org/no--such", "org/name.git"])
def test_a_name_that_the_hub_refuses_is_one_line(cache: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"^model {name} .*cannot be downloaded [^\n]*$"):
        resolve_model(name)


# From here on in a process of its own: the hub's client reads its settings from the environment once.


def resolve_in_process(tmp_path: Path, *hub_ids: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = f"from rlcorr.train.inputs.model_source import resolve_model; [print(resolve_model(i)) for i in {hub_ids}]"
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith(("HF_", "HTTP"))}
    return subprocess.run(
        [sys.executable, "-c", script], env=others | {"HF_HOME": str(tmp_path / "hf")} | environment,
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never says a word, like a network that swallows packets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def assert_one_clear_line(process: subprocess.CompletedProcess[str], hub_id: str) -> None:
    assert process.returncode != 0
    last = process.stderr.splitlines()[-1]
    assert last.startswith(f"rlcorr.errors.UsageError: model {hub_id} is neither a directory nor in the hub's cache")
    assert f"run `hf download {hub_id}` where there is internet." in last


@pytest.mark.slow
def test_without_a_hub_it_says_so(tmp_path: Path) -> None:
    """Where HF_HUB_OFFLINE is set is above, in this process."""
    assert_one_clear_line(resolve_in_process(tmp_path, "org/name", HF_ENDPOINT="http://127.0.0.1:9"), "org/name")


@pytest.mark.slow
def test_a_silent_network_is_given_up(tmp_path: Path) -> None:
    with silent_server() as address:
        process = resolve_in_process(tmp_path, "org/name", HF_ENDPOINT=address)  # its time limit is the assertion
    assert_one_clear_line(process, "org/name")


REPOSITORY = {**MODEL, "generation_config.json": "{}", "pytorch_model.bin": "no", "onnx/model.safetensors": "no"}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in ("/api/models/org/name", "/api/models/org/name/revision/main"):
            self._json({"id": "org/name", "sha": COMMIT, "siblings": []})
        elif path.startswith("/api/models/org/name/tree/"):
            sizes = {name: len(text) for name, text in REPOSITORY.items()}
            self._json([{"type": "file", "path": n, "size": size, "oid": n} for n, size in sizes.items()])
        elif path.startswith(f"/org/name/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/org/name/resolve/{COMMIT}/")
            self._reply(200, REPOSITORY[name].encode(), {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})
        else:
            self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _json(self, value: object) -> None:
        self._reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_a_download_brings_what_is_needed_and_stays(tmp_path: Path) -> None:
    with hub() as address:
        process = resolve_in_process(tmp_path, "org/name", "org/unknown", HF_ENDPOINT=address)
    folder = Path(process.stdout.strip())
    assert {path.name: path.read_text() for path in folder.iterdir()} == {**MODEL, "generation_config.json": "{}"}
    assert_one_clear_line(process, "org/unknown")
    again = resolve_in_process(tmp_path, "org/name", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert again.stdout == process.stdout
