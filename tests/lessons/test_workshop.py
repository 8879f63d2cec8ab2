"""The workshop edition: everything a participant needs, nothing that gives the answers away."""

import ast
import importlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
SLUGS = sorted(path.stem for path in LESSONS.glob("[0-9][0-9]_*.py"))
PIECES = ["ratios", "capped", "sample", "log_probs", "advantages", "clipped", "kept", "loss", "update", "train"]
LOAD = "mini = load_mini()"
every_lesson = pytest.mark.parametrize("slug", SLUGS)


@pytest.fixture(scope="module")
def workshop() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(LESSONS)
        yield importlib.import_module("_workshop")


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_solution(cell: Any) -> bool:
    return "solution" in cell.metadata.get("tags", [])


@every_lesson
def test_an_edition_has_every_cell_but_the_solutions(workshop: ModuleType, slug: str) -> None:
    committed = nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4)
    edition = nbformat.reads(workshop.edition(LESSONS / f"{slug}.py"), as_version=4)
    assert "Solution" not in "\n".join(
        re.findall(r"^#.*", "\n".join(cell.source for cell in edition.cells), re.MULTILINE)
    )
    assert [cell.source for cell in edition.cells] == [c.source for c in committed.cells if not is_solution(c)]
    assert sum(map(is_solution, committed.cells)) >= 2
    assert all(not cell.outputs and cell.execution_count is None for cell in code(edition))


@every_lesson
def test_nothing_needs_a_solution(slug: str) -> None:
    """A name that only a solution defines would stop a participant further down."""
    cells = code(nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4))
    used, given = set[str](), set[str]()
    for cell in cells:
        tree = ast.parse(cell.source)
        if is_solution(cell):
            given |= defined(tree)
        else:
            given -= defined(tree)
            used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & given
    assert used == set()


def defined(tree: ast.Module) -> set[str]:
    """What the cell leaves behind: not the names inside of functions and comprehensions."""
    names = set[str]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        for target in node.targets if isinstance(node, ast.Assign) else []:
            names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def test_every_link_of_a_text_leads_to_a_file_of_the_edition(workshop: ModuleType) -> None:
    files = {*workshop.SINGLE, *(f"lessons/{slug}.ipynb" for slug in SLUGS)}
    for folder in workshop.WHOLE:
        files |= {path.relative_to(workshop.ROOT).as_posix() for path in workshop._files(workshop.ROOT / folder)}
    folders = {str(parent) for file in files for parent in Path(file).parents}
    texts = {file: (workshop.ROOT / file).read_text(encoding="utf-8") for file in files if file.endswith(".md")}
    for slug in SLUGS:
        cells = nbformat.reads(workshop.edition(LESSONS / f"{slug}.py"), as_version=4).cells
        texts[f"lessons/{slug}.ipynb"] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = [(file, link) for file, text in texts.items() for link in re.findall(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)", text)]
    assert len(links) > 100
    lost = [(f, link) for f, link in links if os.path.normpath(Path(f).parent / link) not in files | folders]
    assert lost == []


@pytest.fixture(scope="module")
def archive(workshop: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "w.zip"
    workshop.write(path)
    return path


@pytest.mark.slow
def test_the_archive_holds_the_library_the_app_the_runs_and_no_answers(workshop: ModuleType, archive: Path) -> None:
    names = zipfile.ZipFile(archive).namelist()
    files = {name.removeprefix(f"{workshop.FOLDER}/") for name in names}
    assert {
        "START.txt",
        "Makefile",
        "pyproject.toml",
        "rlcorr/train/loop.py",
        "app/main.py",
        "lessons/show.py",
    } <= files
    assert {"runs/index.toml", "runs/bf16/manifest.json", "requirements/torch.txt"} <= files
    assert "app/.streamlit/config.toml" in files
    assert {f"lessons/{slug}.ipynb" for slug in SLUGS} <= files
    assert {"lessons/mini.py", "lessons/mini_pieces.py", "lessons/exercises/mini_checks.py"} <= files
    assert not [name for name in files if name.startswith(("lessons/0", "lessons/1")) and name.endswith(".py")]
    assert not [name for name in files if "runs/local/" in name or "__pycache__" in name]


@pytest.fixture
def home(workshop: ModuleType, archive: Path, tmp_path: Path) -> Path:
    """Unpack the archive elsewhere, with its own library and runs."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path)
    return tmp_path / workshop.FOLDER


def execute(home: Path, slug: str) -> list[Any]:
    """Execute a lesson of the unpacked archive. Return its code cells."""
    path = f"lessons/{slug}.ipynb"
    script = (
        "import nbformat, sys; from nbclient import execute; path = sys.argv[1];"
        "notebook = execute(nbformat.read(path, 4), cwd='lessons', kernel_name='python3');"
        "nbformat.write(notebook, path)"
    )
    environment = {**os.environ, "PYTHONPATH": str(home)}
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return code(nbformat.read(home / path, as_version=4))


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.slow
def test_a_participant_reaches_the_end_of_the_first_lesson(home: Path) -> None:
    """The exercises say that they wait."""
    assert sum("Not yet: " in printed(cell) for cell in execute(home, SLUGS[0])) == 2


@pytest.mark.slow
def test_the_experiment_of_lesson_12_runs_with_pieces_written_since_the_kernel_started(home: Path) -> None:
    """The ten pieces are the solution cells of the lessons, as they stand."""
    slug = next(slug for slug in SLUGS if slug.startswith("12"))
    committed = [nbformat.read(path, as_version=4) for path in sorted(LESSONS.glob("*.ipynb"))]
    solutions = [cell.source for notebook in committed for cell in notebook.cells if is_solution(cell)]
    is_piece = re.compile(rf"^def ({'|'.join(PIECES)})_solution", re.MULTILINE)
    pieces = "\n\n".join(source for source in solutions if is_piece.search(source))
    write = f"from pathlib import Path\nfile = Path('mini.py')\nfile.write_text(file.read_text() + {pieces!r})"

    notebook = nbformat.read(home / f"lessons/{slug}.ipynb", as_version=4)
    imports, *others = code(notebook)
    before, experiment = (cell for cell in others if LOAD in cell.source)
    experiment.source = experiment.source.replace("range(10, 20)", "range(10, 12)")
    all_ways = nbformat.v4.new_code_cell("[trained(way, LAG) for way in ('ratios', 'capped', 'kept')]")
    notebook.cells = [imports, before, nbformat.v4.new_code_cell(write), experiment, all_ways]
    nbformat.write(notebook, home / f"lessons/{slug}.ipynb")
    first, last = (printed(cell) for cell in execute(home, slug) if LOAD in cell.source)
    assert first.startswith("Yours, in mini.py: none yet.\nStill to be written: ")
    assert last == f"Yours, in mini.py: {', '.join(PIECES)}.\n"
