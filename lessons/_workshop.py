"""Make the workshop edition: `python lessons/_workshop.py [--wheels]` writes build/rlcorr-workshop.zip.

It has what a participant needs: the library, the app, the recorded runs, and the lessons without solutions and
outputs. With --wheels, also every package for this platform and this Python, so that `make setup` needs no network.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from _build import LESSONS, parse, sources

ROOT = LESSONS.parent
FOLDER = "rlcorr-workshop"
WHOLE = ("rlcorr", "app", "runs", "requirements", "lessons/exercises", "lessons/diagrams", "lessons/capstone")
SINGLE = (
    "README.md",
    "LICENSE",
    "Makefile",
    "pyproject.toml",
    "lessons/count_on.py",
    "lessons/curves.py",
    "lessons/dots.py",
    "lessons/study_ends.py",
    "lessons/show.py",
    "lessons/plotted.py",
    "lessons/printed.py",
    "lessons/recorded.py",
    "lessons/mini.py",
    "lessons/mini_curve.py",
    "lessons/mini_pieces.py",
    "lessons/mini_vllm.py",
    "lessons/kernels.py",
    "lessons/sentences.py",
    "lessons/NOTATION.md",
    "lessons/README.md",
    "lessons/index.toml",
    "lessons/TEACHING.md",
    "lessons/DECISION_CARD.md",
    "lessons/PAPERS.md",
    *(f".github/{name}" for name in ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "DECISIONS.md", "SECURITY.md")),
    "tests/README.md",  # like those above, the texts link to it
)
LEFT_OUT = ("__pycache__", "local", ".ipynb_checkpoints")
PACKAGES = ("torch", "engineless")
"""The requirements that the wheels are of: the app and the lessons need no vLLM."""

START = """Set up once, with Python 3.11 or newer:   make setup
The playground:                            make app
The lessons:                               make learn
"""
WHEELS_HELP = """The folder wheels/ holds every package for {platform}, Python {python}: on such a machine
`make setup` needs no network. Without the folder, it downloads them.
"""


def edition(source: Path) -> str:
    """The notebook of a lesson as a participant gets it."""
    notebook = parse(source)
    notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]
    return nbformat.writes(notebook) + "\n"


def contents() -> Iterator[tuple[str, bytes]]:
    """Every file of the edition, by its name in the archive."""
    for path in (*map(ROOT.joinpath, SINGLE), *(path for folder in WHOLE for path in _files(ROOT / folder))):
        yield path.relative_to(ROOT).as_posix(), path.read_bytes()
    for source in sources():
        yield f"lessons/{source.stem}.ipynb", edition(source).encode()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not set(LEFT_OUT) & set(p.relative_to(folder).parts))


def write(target: Path, wheels: Path | None = None) -> None:
    """The same bytes whenever it is made of the same files."""
    start = START
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents():
            archive.writestr(zipfile.ZipInfo(f"{FOLDER}/{name}"), content, zipfile.ZIP_DEFLATED)
        for wheel in sorted(wheels.iterdir()) if wheels else ():
            archive.write(wheel, f"{FOLDER}/wheels/{wheel.name}", zipfile.ZIP_STORED)
            start = START + WHEELS_HELP.format(platform=sys.platform, python=sys.version.split()[0])
        archive.writestr(zipfile.ZipInfo(f"{FOLDER}/START.txt"), start)


def download(folder: Path) -> None:
    """Every pinned package, as a wheel."""
    for name in PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        requirements = str(ROOT / "requirements" / f"{name}.txt")
        subprocess.run([*command, "--dest", str(folder), "-r", requirements], check=True)


def main(options: list[str]) -> None:
    if set(options) - {"--wheels"}:
        sys.exit(f"unknown options {options}; there is --wheels.")
    target = ROOT / "build" / f"{FOLDER}.zip"
    target.parent.mkdir(exist_ok=True)
    if "--wheels" in options:
        with tempfile.TemporaryDirectory() as folder:
            download(Path(folder))
            write(target, Path(folder))
    else:
        write(target)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
