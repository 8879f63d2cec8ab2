"""The pinned packages, and the wheel in environments that hold no more than an extra brings."""

import json
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import plotly.offline
import pytest
from installed import PROJECT, build_wheel, environment

from rlcorr.presets import PRESETS

SETTINGS: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))

CORRECT = """
import sys, torch
from rlcorr import PRESETS, LossConfig, TokenBatch, evaluate, policy_loss, preset, to_verl
from rlcorr.systems.export import SYSTEMS, exports

batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2))
result, numbers = evaluate(batch, preset("decoupled_token_is"))
print(result.weights.tolist(), sum(len(exports(p.config, p.loss)) for p in PRESETS.values()))
print(sorted({name.split(".")[0] for name in sys.modules} & {"numpy", "pyarrow", "streamlit", "transformers", "yaml"}))
"""


def test_pyproject_lists_every_package() -> None:
    """The folders of code, and the recorded runs."""
    folders = {
        path.parent.relative_to(PROJECT) for room in ("rlcorr", "app") for path in (PROJECT / room).rglob("*.py")
    }
    names = {".".join(folder.parts) for folder in folders}
    expected = {f"rlcorr_{name}" if name.split(".")[0] == "app" else name for name in names}
    expected |= {"rlcorr_lessons", "rlcorr_runs"}
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == expected


PINS = PROJECT / "requirements"
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = [PROJECT / "Makefile", PROJECT / ".binder" / "postBuild", *WORKFLOWS]
SCRIPTS += sorted(path for room in ("requirements", "tests", "app") for path in (PROJECT / room).rglob("*.sh"))


def joined_lines(path: Path) -> list[str]:
    """Return the lines of a file, each with those that continue it after a backslash."""
    return path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def commands(word: str) -> list[str]:
    """Return the lines of all scripts that contain a word, without comments."""
    lines = (line for path in SCRIPTS for line in joined_lines(path) if not line.lstrip().startswith("#"))
    return [line for line in lines if re.search(rf"\b{word}\b", line)]


def test_every_pinned_package_has_a_hash() -> None:
    files = sorted(PINS.rglob("*.txt"))
    assert {"cpu.txt", "torch.txt", "verl.txt"} <= {path.name for path in files}
    for path in files:
        pins = [line for line in joined_lines(path) if line and not line.startswith(("#", "--extra-index-url", "-r "))]
        assert pins
        assert not [
            pin for pin in pins if not re.match(r"[\w.-]+==[^\s;]+( ;[^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+$", pin)
        ]


def test_pip_checks_the_hash_of_every_pinned_package() -> None:
    installs = [line for line in commands("r") if re.search(r"pip\b.* install |\bPIP\b|pip\" install", line)]
    assert len(installs) >= 5
    assert not [line for line in installs if "--require-hashes" not in line]


def test_the_app_on_a_host_gets_the_pinned_torch() -> None:
    """Compare the pins of app/requirements.txt, which cannot have hashes, with those of requirements/torch.txt."""
    pinned, repeated = (
        [line.split(" --hash")[0].strip() for line in joined_lines(path) if line.startswith(("torch", "--extra"))]
        for path in (PINS / "torch.txt", PROJECT / "app" / "requirements.txt")
    )
    assert len(pinned) == 3
    assert pinned == repeated


def test_npm_installs_what_the_lock_file_names() -> None:
    """No address is in the lock file, so that npm asks the registry that it is set up for."""
    lock, names = (json.loads((PINS / "npm" / name).read_text()) for name in ("package-lock.json", "package.json"))
    root, packages = lock["packages"].pop(""), lock["packages"]
    assert root["dependencies"] == names["dependencies"]
    assert {name: packages[f"node_modules/{name}"]["version"] for name in root["dependencies"]} == root["dependencies"]
    assert all(p["integrity"].startswith("sha512-") and "resolved" not in p for p in packages.values())
    assert names["dependencies"]["plotly.js-cartesian-dist-min"] == plotly.offline.get_plotlyjs_version()


def test_npm_installs_nothing_without_the_lock_file() -> None:
    installs = [line for line in commands("npm") if re.search(r" (ci|i|add|exec|install) ", line)]
    assert len(installs) == 2
    assert not [line for line in installs if " ci " not in line and "--package-lock-only" not in line]


def test_workflows_name_the_commits_of_actions() -> None:
    actions = [line.split("uses:")[1].strip() for line in commands("uses")]
    assert len(actions) >= 4
    assert not [action for action in actions if not re.match(r"[\w-]+/[\w-]+@[0-9a-f]{40}\b", action)]


MISSING = {
    "-m rlcorr import pairs.jsonl": 'rlcorr: this part of rlcorr needs tqdm, tyro, yaml: pip install "rlcorr[data]".',
    "-c import rlcorr.recorders": 'needs numpy, pyarrow, safetensors: pip install "rlcorr[data]".',
    "-c import rlcorr.figures": 'needs numpy, plotly: pip install "rlcorr[figures]".',
}
"""Arguments of Python → the end of the last line of the error, where only torch is installed."""


@pytest.mark.slow
def test_the_wheel(tmp_path: Path) -> None:
    """It holds what a clone holds. With torch alone it corrects ratios 1 and e, cut at 2, and writes every preset in
    the words of some system; no other package is loaded, and what is missing is a sentence."""
    wheel = build_wheel(tmp_path)
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    kinds = (".py", ".toml", ".js", ".css", ".html", ".typed")
    clone = {name for name in listed.splitlines() if (name.startswith(("rlcorr/", "app/")) and name.endswith(kinds))}
    clone |= {name for name in listed.splitlines() if name.startswith("runs/")}
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert {re.sub(r"^(app|runs)/", r"rlcorr_\1/", name) for name in clone} - packed == set()
    python = environment(tmp_path / "torch", wheel)
    done = subprocess.run([str(python), "-c", CORRECT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("[[1.0, 2.0]]")
    assert int(first.split()[-1]) >= len(PRESETS)
    assert second == "[]"
    for words, sentence in MISSING.items():
        flag, _, rest = words.partition(" ")
        command = [str(python), flag, *(rest.split() if flag == "-m" else [rest])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode != 0
        assert done.stderr.splitlines()[-1].endswith(sentence)
