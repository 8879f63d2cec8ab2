"""Build the notebooks, and their lists in two READMEs: `python lessons/_build.py [00_start_here …]`, by default all.

A lesson is written in NN_slug.py (jupytext percent format). Here it is executed and stored, with its outputs, in
NN_slug.ipynb. Whatever would differ between two builds is left out or constant: ids, times, versions.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

import jupytext
import nbformat
from _images import add_images
from nbclient import NotebookClient
from nbformat import NotebookNode

LESSONS = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "default",
}
"""As in `make nb`, which executes the notebooks again and compares. Every warning is printed, and a test refuses it."""

HIDDEN = {"jupyter": {"source_hidden": True}}
"""What a front end reads; people write the tag hide-input."""


def sources() -> list[Path]:
    return sorted(LESSONS.glob("[0-9][0-9]_*.py"))


def parse(source: Path) -> NotebookNode:
    """The notebook of a lesson, not yet executed."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"c{number:03d}"
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata.update(HIDDEN)
    return notebook


def build(source: Path) -> str:
    """The text of the executed notebook. Raises `CellExecutionError`, with the traceback, if a cell fails."""
    notebook = parse(source)
    client = NotebookClient(
        notebook,
        timeout=60,
        kernel_name="python3",
        resources={"metadata": {"path": str(LESSONS)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # a warning about TCP is no news on one machine
    )
    client.execute(env=os.environ | ENVIRONMENT)
    notebook.metadata = nbformat.from_dict(METADATA)  # the kernel has added its version
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            _clean(output)
    target = source.with_suffix(".ipynb")
    add_images(notebook, nbformat.read(target, as_version=4) if target.exists() else None)
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _clean(output: NotebookNode) -> None:
    """An error keeps its name and its sentence; the traceback holds paths of this machine."""
    if output.output_type == "error":
        output.traceback = [f"{output.ename}: {output.evalue}"]


def table(index: dict[str, dict]) -> str:
    """Return the table of lessons/README.md: title, claim, minutes and level of each lesson."""
    rows = ["| lesson | what it shows | minutes | level |", "|---|---|---|---|"]
    for slug, entry in index.items():
        title = f"[{slug[:2]} · {entry['title']}]({slug}.ipynb)"
        rows.append(f"| {title} | {entry['claim']} | {entry['minutes']} | {entry['level']} |")
    return "\n".join(rows)


def titles(index: dict[str, dict]) -> str:
    """Return the list of the README: one link per lesson, with its title up to the colon."""
    links = (f"[{slug[:2]} {entry['title'].split(':')[0]}](lessons/{slug}.ipynb)" for slug, entry in index.items())
    return " ·\n".join(links)


LISTS = {LESSONS / "README.md": table, LESSONS.parent / "README.md": titles}
"""File → what is between its two comments."""


def with_lessons(path: Path) -> str:
    """Return the text of the file with the lessons of today's index.toml between its two comments.

    Raises:
        ValueError: if the file lacks one of the comments.
    """
    index = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"(?<=<!-- lessons -->\n).*?(?=\n<!-- end of lessons -->)", text, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"{path} has lost the two comments around its list of lessons.")
    return LISTS[path](index).join(parts)


def main(names: list[str]) -> None:
    by_name = {source.stem: source for source in sources()}
    for name in names or by_name:
        if name not in by_name:
            sys.exit(f"no lesson {name!r}; there are: {', '.join(by_name)}.")
        target = by_name[name].with_suffix(".ipynb")
        target.write_text(build(by_name[name]), encoding="utf-8")
        print(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB")
    for readme in LISTS:
        readme.write_text(with_lessons(readme), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
