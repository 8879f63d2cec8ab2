"""Build the notebooks, their lists in the READMEs and the decision card: `python lessons/_build.py [00_start …]`.

Without names it builds all. A lesson is written in NN_slug.py (jupytext percent format). Here it is executed and
stored, with its outputs, in NN_slug.ipynb. Whatever would differ between two builds is left out or constant: ids,
times, versions.
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
EXERCISE = re.compile(r"^###? (Exercise.*|mini\.py.*)", re.MULTILINE)
SOLUTIONS = "## Solutions\n\nOf the exercises above, in their order."
FOLDED = {"tags": ["solution"], "jp-MarkdownHeadingCollapsed": True}


def sources() -> list[Path]:
    return sorted(LESSONS.glob("[0-9][0-9]_*.py"))


def parse(source: Path) -> NotebookNode:
    """Return the notebook of a lesson, not yet executed, with its solutions at the end."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.cells = solutions_last(notebook.cells)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"c{number:03d}"
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata.update(HIDDEN)
    return notebook


def solutions_last(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Move the solutions behind everything else, each below the name of its exercise.

    A code host shows every cell open, so a solution beside its exercise would be read before one has tried.
    """
    heading, others, solutions = "", [], [nbformat.v4.new_markdown_cell(SOLUTIONS, metadata=FOLDED)]
    for cell in cells:
        if cell.cell_type == "markdown":
            heading = [heading, *EXERCISE.findall(cell.source)][-1]
        if "solution" not in cell.metadata.get("tags", []):
            others.append(cell)
            continue
        title = f"### Solution of {heading[0].lower()}{heading[1:]}"
        if title not in [before.source for before in solutions]:
            solutions.append(nbformat.v4.new_markdown_cell(title, metadata={"tags": ["solution"]}))
        solutions.append(cell)
    return others + solutions


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


def table() -> str:
    """Return the table of lessons/README.md: title, claim, minutes and level of each lesson."""
    rows = ["| lesson | what it shows | minutes | level |", "|---|---|---|---|"]
    for slug, entry in index().items():
        title = f"[{slug[:2]} · {entry['title']}]({slug}.ipynb)"
        rows.append(f"| {title} | {entry['claim']} | {entry['minutes']} | {entry['level']} |")
    return "\n".join(rows)


def titles() -> str:
    """Return the list of the README: one link per lesson, with its title up to the colon."""
    links = (f"[{slug[:2]} {entry['title'].split(':')[0]}](lessons/{slug}.ipynb)" for slug, entry in index().items())
    return " ·\n".join(links)


def five_lessons() -> str:
    """Return the table of the path: the lessons after which one can decide something."""
    rows = ["| lesson | what you can decide after it | minutes |", "|---|---|---|"]
    for slug, entry in index().items():
        if "decides" in entry:
            rows.append(f"| [{slug[:2]} · {entry['title']}]({slug}.ipynb) | {entry['decides']} | {entry['minutes']} |")
    return "\n".join(rows)


def index() -> dict[str, dict]:
    return tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))


def decision_card() -> str:
    """Return the table that the lesson on thresholds has printed."""
    notebook = nbformat.read(LESSONS / "04_threshold.ipynb", as_version=4)
    (cell,) = (cell for cell in notebook.cells if "decision-card" in cell.metadata.get("tags", []))
    return cell.outputs[0].data["text/markdown"]


CITED = re.compile(
    r"^# \d+\. ([^[]*)\[([^]]+)\]\((http\S+)\), (\d{4})(?:: (.*?))?\n(?=# \d+\. |\n|\Z)", re.MULTILINE | re.DOTALL
)


def papers() -> str:
    """Return the table of what the lessons' references date: title, year, and lesson by lesson for what it is cited."""
    cited: dict[str, list[tuple[str, ...]]] = {}
    for source in sources():
        for item in CITED.findall(source.read_text(encoding="utf-8").partition("# ## References")[2]):
            who, title, address, year, why = (" ".join(part.replace("\n#", " ").split()) for part in item)
            link = f"[{source.stem[:2]}]({source.stem}.ipynb) {why.rstrip('.')}"
            cited.setdefault(address, []).append((year, who, title, link))
    rows = ["| paper | year | cited for |", "|---|---|---|"]
    for address, uses in sorted(cited.items(), key=lambda one: (-int(one[1][0][0]), one[1][0][2])):
        year, (who, title) = uses[0][0], (max((use[k] for use in uses), key=len) for k in (1, 2))
        rows.append(
            f"| {f'{who} ' if who else ''}[{title}]({address}) | {year} | {'; '.join(use[3] for use in uses)} |"
        )
    return "\n".join(rows)


LISTS = {
    (LESSONS / "PAPERS.md", "papers"): papers,
    (LESSONS / "README.md", "five lessons"): five_lessons,
    (LESSONS / "TEACHING.md", "five lessons"): five_lessons,
    (LESSONS / "README.md", "lessons"): table,
    (LESSONS.parent / "README.md", "lessons"): titles,
    (LESSONS / "DECISION_CARD.md", "card"): decision_card,
}
"""File and name of its two comments → what is between them."""


def with_list(path: Path, name: str) -> str:
    """Return the text of the file with what belongs between its two comments today.

    Raises:
        ValueError: if the file lacks one of the comments.
    """
    text = path.read_text(encoding="utf-8")
    parts = re.split(rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- end of {name} -->)", text, flags=re.DOTALL)
    if len(parts) != 2:
        raise ValueError(f"{path} has lost the two comments around its list of {name}.")
    return LISTS[path, name]().join(parts)


def main(names: list[str]) -> None:
    by_name = {source.stem: source for source in sources()}
    for name in names or by_name:
        if name not in by_name:
            sys.exit(f"no lesson {name!r}; there are: {', '.join(by_name)}.")
        target = by_name[name].with_suffix(".ipynb")
        target.write_text(build(by_name[name]), encoding="utf-8")
        print(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB")
    for path, name in LISTS:
        path.write_text(with_list(path, name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
