"""The READMEs: their links, commands, paths and code are there, and the front page stays short."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
TEXTS = [
    *(REPOSITORY / name / "README.md" for name in (".", "app", "lessons", "rlcorr", "runs", "tests")),
    *sorted((REPOSITORY / "rlcorr").glob("*/README.md")),
    *sorted((REPOSITORY / ".github").glob("*.md")),
]
every_text = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
NOW = [path for path in TEXTS if path.name != "CHANGELOG.md"]
"""A changelog also names what is gone."""
every_text_of_now = pytest.mark.parametrize("path", NOW, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
LOG_PROBS = {
    "old_log_probs": torch.tensor([[0.5, 0.9, 0.3]]).log(),
    "rollout_log_probs": torch.tensor([[0.2, 0.9, 0.35]]).log(),
    "response_mask": torch.ones(1, 3),
}


def test_the_front_page_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 160


@pytest.mark.parametrize("folder", ["rlcorr", "app"])
def test_the_front_page_names_every_room(folder: str) -> None:
    """`test_architecture.py` holds that its table has a row for each of these folders, and no other."""
    section = README.read_text(encoding="utf-8").split("## Where what is")[1].split("\n## ")[0]
    rooms = [path.parent for path in (REPOSITORY / folder).glob("*/*.py")]
    assert rooms
    for room in (REPOSITORY / folder, *rooms):
        assert re.search(rf"(?<![\w/]){room.name}/", section), room.name


@every_text
def test_a_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    for link in links:
        if not re.match(r"https?:", link):
            assert "#" not in link, f"{link}: link to a file, because headings change"
            assert (path.parent / link).exists(), link


@every_text_of_now
def test_a_path_is_there(path: Path) -> None:
    """What is in backticks and looks like a file of the repository. NAME and NN are placeholders."""
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:md|py|sh|toml|txt|yml))`", path.read_text(encoding="utf-8"))
    for name in named:
        if not re.search(r"NAME|NN", name):
            assert (REPOSITORY / name).exists() or (path.parent / name).exists(), name


@every_text_of_now
def test_a_command_is_there(path: Path) -> None:
    """Verbs of the Makefile, and parts of `make bench`."""
    text, makefile = path.read_text(encoding="utf-8"), (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    folder = REPOSITORY / "tests" / "bench"
    bench = (folder / "bench.py").read_text(encoding="utf-8")
    for verb in re.findall(r"(?:`|^    |&& |time |default )make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
    for first, quoted in re.findall(r"make bench ARGS=(?:(\w+)|\"([\w ]+)\")", text):
        for part in (first or quoted).split():
            file = folder / f"bench_{part}.py"
            is_file = file.exists() and "\ndef main(" in file.read_text(encoding="utf-8")
            assert is_file or re.search(rf'^    "{part}": ', bench, re.MULTILINE), part


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def test_the_eight_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The first ratio is 0.5 / 0.2 = 2.5, so its weight is the cap; the others are 1 and 0.3 / 0.35."""
    (code,) = python_blocks(README)
    assert len(code.splitlines()) == 8
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["result"].weights.tolist()[0] == pytest.approx([2.0, 1.0, 0.3 / 0.35])
    assert "0.8571" in capsys.readouterr().out


def test_the_lines_about_the_library_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With the compiled pass left out, which takes half a minute."""
    names: dict[str, Any] = {**LOG_PROBS, "sampled_log_probs": LOG_PROBS["old_log_probs"]}
    for code in python_blocks(REPOSITORY / "rlcorr" / "README.md"):
        exec(re.sub(r"^(one_pass =|result, measured = one_pass).*$", "", code, flags=re.MULTILINE), names)
    assert "a weight above 2 becomes 2" in capsys.readouterr().out


def test_the_lines_about_systems_run(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = python_blocks(REPOSITORY / "rlcorr" / "systems" / "README.md")
    exec(code, {})
    assert "off_policy_correction:" in capsys.readouterr().out


def test_a_commit_is_linted_by_the_pinned_ruff() -> None:
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = {
        version
        for path in (REPOSITORY / "requirements").glob("*.txt")
        for version in re.findall(r"^ruff==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(re.findall(r"ruff==([\w.]+)", hooks)) == pinned
