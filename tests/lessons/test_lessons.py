"""The committed notebooks are what their sources say, were executed, and would notice a wrong number."""

import ast
import base64
import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
LESSONS = REPOSITORY / "lessons"
INDEX: dict[str, dict[str, Any]] = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
NOTEBOOKS = sorted(LESSONS.glob("*.ipynb"))
PLOTLY, PNG = "application/vnd.plotly.v1+json", "image/png"
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|Users|root|tmp|work|mnt|opt|usr|var)/")

every_lesson = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def builder() -> ModuleType:
    if str(LESSONS) not in sys.path:
        sys.path.insert(0, str(LESSONS))
    return importlib.import_module("_build")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def is_compared(cell: Any) -> bool:
    return bool(cell.outputs) and not {"nbval-ignore-output", "nbval-skip"} & set(tags(cell))


def printed(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def by_heading(path: Path) -> dict[str, list[Any]]:
    """Return the cells below each heading, without its own."""
    parts: dict[str, list[Any]] = {"": []}
    for cell in read(path).cells:
        headings = re.findall(r"^###? (.*)", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else []
        if headings:
            parts[headings[-1]] = []
        else:
            parts[[*parts][-1]].append(cell)
    return parts


# --- the index ---


def test_the_index_has_exactly_the_lessons_that_exist() -> None:
    sources = [path.stem for path in builder().sources()]
    assert sources
    assert list(INDEX) == sources
    assert [path.stem for path in NOTEBOOKS] == sources


@pytest.mark.parametrize("slug", INDEX)
def test_an_entry_is_complete(slug: str) -> None:
    entry = INDEX[slug]
    on_the_path = {"decides"} if slug in list(INDEX)[:5] else set()
    assert set(entry) == {"title", "claim", "minutes", "level", "prerequisites", "hardware"} | on_the_path
    assert 5 <= entry["minutes"] <= 150
    assert entry["level"] in ("beginner", "intermediate", "advanced")
    assert set(entry["prerequisites"]) <= set(list(INDEX)[: list(INDEX).index(slug)])


@every_lesson
def test_a_lesson_opens_with_what_the_index_says(path: Path) -> None:
    entry, opening = INDEX[path.stem], " ".join(read(path).cells[0].source.split())
    assert opening.startswith(f"# {path.stem[:2]} · {entry['title']} ")
    assert f"**Claim.** {entry['claim']}" in opening
    assert f"{entry['minutes']} minutes · {entry['level']} · {entry['hardware']}" in opening


# --- the notebooks ---


@every_lesson
def test_a_notebook_has_the_cells_of_its_source(path: Path) -> None:
    source = builder().parse(path.with_suffix(".py"))
    stored = read(path)

    def essence(notebook: Any) -> list[tuple]:
        return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]

    assert essence(stored) == essence(source)
    assert stored.metadata == source.metadata
    assert (stored.nbformat, stored.nbformat_minor) == (4, 5)


@every_lesson
def test_no_text_became_the_title_of_a_cell(path: Path) -> None:
    """The rest of a line `# %% [markdown] Some text` is a title, which nobody sees."""
    assert [cell.id for cell in read(path).cells if "title" in cell.metadata] == []


@every_lesson
def test_every_cell_was_executed_in_order_and_fails_only_where_it_says_so(path: Path) -> None:
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    for cell in code_cells(path):
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in tags(cell)), cell.source
        assert not any(output.get("name") == "stderr" for output in cell.outputs), cell.source


@every_lesson
def test_an_exercise_can_be_tried_checked_and_looked_up(path: Path) -> None:
    """Each solution is behind everything else, where nobody reads it before trying: a code host folds nothing."""
    parts = by_heading(path)
    exercises = [heading for heading in parts if heading.startswith("Exercise")]
    assert 2 <= len(exercises) <= 4
    for heading in exercises:
        to_write, check = parts[heading][:2]
        assert "raise NotImplementedError(" in to_write.source
        assert check.source.startswith("check(")
        assert "Not yet: " in printed(check)
        solution = parts[f"Solution of e{heading[1:]}"]
        assert all({"solution", "hide-input"} <= set(tags(cell)) for cell in solution)
        assert any("Right." in printed(cell) for cell in solution if is_compared(cell))
    is_solution = ["solution" in tags(cell) for cell in read(path).cells]
    assert is_solution == sorted(is_solution)


@every_lesson
def test_what_a_visible_cell_needs_was_computed_in_sight(path: Path) -> None:
    """Imports, functions and CONSTANTS may come from a folded cell; values may not. More practice is not looked at."""
    folded = dict[str, str]()  # name → the folded cell that computed it last
    for cell in [cell for cell in read(path).cells[: _more_practice(path)] if cell.cell_type == "code"][1:]:
        body = ast.parse(cell.source).body
        if "hide-input" in tags(cell):
            values = (node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef))
            names = (node for value in values for node in ast.walk(value) if isinstance(node, ast.Name))
            stored = {node.id for node in names if isinstance(node.ctx, ast.Store) and not node.id.isupper()}
            folded |= dict.fromkeys(stored, cell.id)
            continue
        nodes = [node for part in body for node in ast.walk(part)]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        assert [(name.id, folded[name.id], cell.id) for name in names if name.id in folded.keys() - stored] == []
        folded = {name: where for name, where in folded.items() if name not in stored}


def _more_practice(path: Path) -> int:
    cells = read(path).cells
    return next(n for n, cell in enumerate(cells) if re.match("## (More practice|Appendix|Solutions)", cell.source))


@every_lesson
def test_what_answers_a_prediction_is_folded(path: Path) -> None:
    revealing = [cell for cell in code_cells(path) if "\nreveal(" in f"\n{cell.source}"]
    predictions = {cell.id for heading, cells in by_heading(path).items() if "Predict" in heading for cell in cells}
    assert revealing
    assert {cell.id for cell in revealing} <= predictions
    for cell in revealing:
        said = [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]
        assert any(text.startswith("<details><summary>Reveal</summary>\n\n") for text in said)


@every_lesson
def test_a_lesson_asks_explains_and_refers(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    sections = {part.split("\n")[0]: part for part in re.split(r"^###? ", text, flags=re.MULTILINE)[1:]}
    assert {"Predict, then reveal", "Check yourself", "In the app", "Pitfalls", "References"} <= set(sections)
    assert len(re.findall(r"^\*\*\d\. ", sections["Check yourself"], flags=re.MULTILINE)) == 3
    assert 3 <= len(re.findall(r"^\d\. ", sections["References"], flags=re.MULTILINE)) <= 6
    for heading, part in sections.items():
        assert not heading.startswith("Exercise") or "<summary>Hint 1</summary>" in part
    assert path.stem < "05" or sections["Warm-up"].count("<details><summary>") >= 4


@every_lesson
def test_every_picture_comes_with_its_numbers_and_few_outputs_are_not_compared(path: Path) -> None:
    for cell in code_cells(path):
        pictures = sum({PLOTLY, PNG} <= set(output.get("data", {})) for output in cell.outputs)
        assert cell.source.count("picture(") == pictures
        assert not pictures or is_compared(cell)
    for tag, allowed in (("nbval-ignore-output", 2), ("nbval-skip", 1)):
        cells = [cell for cell in code_cells(path) if tag in tags(cell)]
        assert len(cells) <= allowed
        assert all(cell.metadata.get("reason") for cell in cells)


@every_lesson
def test_a_notebook_is_small_and_names_no_machine(path: Path) -> None:
    assert path.stat().st_size <= 300 * 1024
    for cell in read(path).cells:
        texts = [cell.source]
        for output in cell.get("outputs", []):
            texts += [str(value) for kind, value in output.get("data", {}).items() if kind not in (PLOTLY, PNG)]
            texts += [output.get("text", ""), "\n".join(output.get("traceback", []))]
        assert not MACHINE_PATH.search("\n".join(texts)), cell.id


# --- what nbval notices ---


def drawn(*heights: float, color: str = "red") -> dict[str, Any]:
    return {"data": [{"type": "scatter", "y": list(heights), "line": {"color": color}}], "layout": {"height": 100}}


def cell_that_shows(printed: str, *figures: dict[str, Any], text: str = "") -> Any:
    """A cell that now prints, and draws the figures with an alternative text; nothing is stored yet."""
    about = {PNG: {"alt": text}}
    lines = [f"display({{{PLOTLY!r}: {figure}}}, raw=True, metadata={about})" for figure in figures]
    return nbformat.v4.new_code_cell("\n".join([*lines, f"print({printed!r})"]), execution_count=1)


def cell_that_says(markdown: str) -> Any:
    return nbformat.v4.new_code_cell(f"display({{'text/markdown': {markdown!r}}}, raw=True)", execution_count=1)


def output_of(printed: str, *figures: dict[str, Any], text: str = "") -> list[Any]:
    about = {PNG: {"alt": text}}
    displays = [nbformat.v4.new_output("display_data", {PLOTLY: figure}, metadata=about) for figure in figures]
    return [*displays, nbformat.v4.new_output("stream", name="stdout", text=f"{printed}\n")]


A, B = drawn(3.0, 1.0), drawn(3.0, 1.01)
COMPARISONS = {
    "the same": (("1.25", A), ("1.25", A), "passed"),
    "one unit of the last digit": (("mean=0.069", A), ("mean=0.06901", A), "passed"),
    "two units of the last digit": (("mean=0.069", A), ("mean=0.06902", A), "failed"),
    "a changed value": (("1.25", A), ("1.25", B), "failed"),
    "another rounding": (("1.25", drawn(3.0, 1.001)), ("1.25", drawn(3.0, 1.0)), "passed"),
    "a figure is missing": (("1.25", A), ("1.25",), "failed"),
    "a figure too many": (("1.25",), ("1.25", A), "failed"),
}
"""Stored, shown now, and what nbval says."""


@pytest.mark.slow
def test_nbval_fails_on_a_changed_number_or_figure_and_passes_over_rounding(tmp_path: Path) -> None:
    cells = []
    for stored, now, _ in COMPARISONS.values():
        cells.append(cell_that_shows(*now))
        cells[-1].outputs = output_of(*stored)
    for now in ("The noise is **1.26**.", "The noise is **1.27**."):
        cells.append(cell_that_says(now))
        cells[-1].outputs = [nbformat.v4.new_output("display_data", {"text/markdown": "The noise is **1.25**."})]
    for now in ("mean=1.26", "mean=1.27"):
        cells.append(cell_that_shows("", A, text=now))
        cells[-1].outputs = output_of("", A, text="mean=1.25")
    cells.append(
        nbformat.v4.new_code_cell("import warnings\nwarnings.warn('old', DeprecationWarning)", execution_count=1)
    )
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "tiny.ipynb")
    for name in ("conftest.py", "plotted.py", "printed.py"):
        shutil.copy(LESSONS / name, tmp_path)
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300", "-c", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(tmp_path), "--rootdir", str(tmp_path), "-v", *options],
        cwd=tmp_path,
        env=os.environ | builder().ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    verdicts = re.findall(r"::Cell (\d+) (PASSED|FAILED)", done.stdout)
    expected = [*(verdict for _, _, verdict in COMPARISONS.values()), *["passed", "failed"] * 2, "failed"]
    assert verdicts == [(str(n), verdict.upper()) for n, verdict in enumerate(expected)], done.stdout


# --- pictures for where plotly does not run ---


def outputs_with_figures(notebook: Any) -> list[Any]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output for output in outputs if PLOTLY in output.get("data", {})]


@every_lesson
def test_a_picture_was_drawn_from_the_figure_beside_it(path: Path) -> None:
    builder()
    fingerprint = importlib.import_module("plotted").fingerprint
    for output in outputs_with_figures(read(path)):
        about = output.metadata[PNG]
        assert about["drawn_from"] == fingerprint(output.data[PLOTLY])
        assert re.search(r"\w.*: .*\(\w+, [\d×]+\): ", about["alt"])  # axes; then trace, kind and size


@pytest.mark.slow
def test_a_figure_and_its_picture_stay_until_it_shows_something_else() -> None:
    builder()
    images = importlib.import_module("_images")
    stored, again = read(NOTEBOOKS[0]), read(NOTEBOOKS[0])
    for output in outputs_with_figures(again):
        del output.metadata[PNG]["drawn_from"], output.data[PNG]
        output.data[PLOTLY]["layout"]["height"] *= 1 + 1e-7
    images.add_images(again, stored)
    assert again == stored

    first, second = outputs_with_figures(again)[:2]
    before = deepcopy([first, second])
    first.data[PLOTLY]["layout"]["height"] = 123
    images.add_images(again, stored)
    assert second == before[1]
    assert first.data[PNG] != before[0].data[PNG]
    assert first.metadata != before[0].metadata
    width, height = struct.unpack(">II", base64.b64decode(first.data[PNG])[16:24])  # of the file's header
    assert (width, height) == (images.WIDTH, 123)
