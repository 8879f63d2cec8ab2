"""Write lessons and reference as pages: `python lessons/_pages.py [--without-solutions]` fills build/site/lessons/.

They show the committed, executed notebooks; nothing is executed. Sphinx makes the pages, lessons/_site/ says how they
look; here the notebooks are put into the form that it reads, and what the pages need is laid beside them.
"""

import base64
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import _build
import _live
import _reference
import nbformat
from nbformat import NotebookNode

from rlcorr.figures.canvas import packed_script
from rlcorr.teaching.code_address import public_address

LESSONS = Path(__file__).resolve().parent
ROOT = LESSONS.parent
STYLE = LESSONS / "_site"
TOOL, MODULES = Path(sys.prefix) / "pages", Path(sys.prefix) / "npm" / "node_modules"
"""Where the Makefile installs requirements/pages.txt, and the npm packages that the pages draw with."""

TARGET = ROOT / "build" / "site" / "lessons"
PLOTLY, PNG, MARKDOWN = "application/vnd.plotly.v1+json", "image/png", "text/markdown"
APP = re.compile(r"http://localhost:8501/(\w*)\??([^)\s]*)")
LINKS = '<p class="take">{links}</p>'
UNSOLVED = "Not yet: "
"""With this the message of rlcorr/teaching/check.py begins while nobody has written an answer."""
SOLVE = """<p class="solve">This page cannot run code. To solve this exercise, run <code>make learn</code> in a clone of
the project and open {slug}.ipynb in JupyterLab, or {links}.</p>"""
FIGURE = """<div class="figure" style="--height: {height}px">
<img src="_static/pictures/{picture}" alt="{text}" loading="lazy">
<script type="application/json">{figure}</script></div>"""
GITHUB = "https://github.com/"
PLAIN = re.compile(r'<span class="[npw]">([^<]*)</span>')
"""A name, a sign or a space of code: it has the colour of the text anyway. These are a sixth of the pages' bytes."""
ELSEWHERE = {
    "Colab": "https://colab.research.google.com/github/{repository}/blob/gh-pages/lessons/notebooks/{slug}.ipynb",
    "Binder": "https://mybinder.org/v2/gh/{repository}/HEAD?labpath=lessons/{slug}.ipynb",
}
"""Where a lesson runs without an installation. Binder reads `.binder`."""
FIRST_CELL = """\
# In Colab this cell fetches the project and what it needs; elsewhere it does nothing.
import os
import subprocess
import sys

if "google.colab" in sys.modules:
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{address}", "rlcorr"], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    pinned = ["-r", "rlcorr/requirements/torch.txt", "-r", "rlcorr/requirements/engineless.txt"]
    subprocess.run([*pip, "--require-hashes", *pinned], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "./rlcorr"], check=True)
    os.chdir("rlcorr/lessons")
    sys.path[:0] = [os.getcwd(), os.path.dirname(os.getcwd())]
"""
INDEX = """# Lessons

Each derives its formulas, checks them, and shows them on recorded runs. Read them here, or download the notebook.

## Five lessons, four hours

They lead to a decision about your own run, without the other lessons, and end with a [card](DECISION_CARD.md) to print.

{path}

## All lessons

{lessons}

```{{toctree}}
:hidden:
:caption: Lessons
NOTATION
DECISION_CARD
PAPERS
{slugs}
```

```{{toctree}}
:hidden:
:caption: Reference
{reference}
```
"""


def page(notebook: NotebookNode, slug: str, address: str | None, pictures: Path) -> NotebookNode:
    """The notebook as Sphinx reads it: links below the title, links into the app to its page beside the lessons, and
    figures as a still picture that the browser replaces by the moving one."""
    links = take_links(slug, address)
    first = notebook.cells[0]
    title, _, rest = first.source.partition("\n")
    first.source = f"{title}\n\n{LINKS.format(links=' · '.join(links))}\n{rest}"
    say_where_to_solve(notebook, slug, links)
    if part := _live.live_parts().get(slug):
        _live.insert(notebook, part)
    imports = next(cell for cell in notebook.cells if cell.cell_type == "code")
    imports.metadata["tags"] = sorted({*imports.metadata.get("tags", []), "hide-input"})
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = APP.sub(in_playground, cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if PLOTLY in data:
                number += 1
                _show(output, pictures / f"{slug}-{number}.png")
            if MARKDOWN in data:
                data[MARKDOWN] = APP.sub(in_playground, data[MARKDOWN])
    return notebook


def take_links(slug: str, address: str | None) -> list[str]:
    """Return links to the notebook of a lesson: to download it and, if it is on GitHub, to Colab and Binder."""
    links = [f'<a href="notebooks/{slug}.ipynb" download>Download the notebook</a>']
    if address and address.startswith(GITHUB):  # Colab opens notebooks from there alone
        repository = address.removeprefix(GITHUB).removesuffix(".git")
        for name, place in ELSEWHERE.items():
            links.append(f'<a href="{place.format(repository=repository, slug=slug)}">Open in {name}</a>')
    return links


def say_where_to_solve(notebook: NotebookNode, slug: str, links: list[str]) -> None:
    """Replace the output of each exercise that nobody has solved by a sentence that says where it can be solved."""
    ways = " or ".join(link.replace(">Download", ">download").replace(">Open", ">open it") for link in links)
    for cell in notebook.cells:
        if any(output.get("text", "").startswith(UNSOLVED) for output in cell.get("outputs", [])):
            sentence = SOLVE.format(slug=slug, links=ways)
            cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": sentence})]


def in_playground(link: re.Match[str]) -> str:
    """http://localhost:8501/bench?run=bf16 → playground:view=bench&run=bf16, whose address conf.py gives."""
    view, query = link.groups()
    return "&".join([f"playground:view={view or 'start'}", *([query] if query else [])])


def _show(output: NotebookNode, picture: Path) -> None:
    """In place of the figure: its picture, with what the browser draws the figure from."""
    figure = output.data[PLOTLY]
    picture.write_bytes(base64.b64decode(output.data[PNG]))
    drawn = json.dumps({key: figure[key] for key in ("data", "layout")}, separators=(",", ":")).replace("<", "\\u003c")
    text = html.escape(output.metadata[PNG]["alt"])
    shown = FIGURE.format(height=figure["layout"]["height"], picture=picture.name, text=text, figure=drawn)
    output.data = nbformat.from_dict({"text/html": shown})


def copy(notebook: NotebookNode, address: str | None) -> NotebookNode:
    """The notebook to download, without the outputs, which the page shows. Its first cell prepares Colab, if the
    project has a public address."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if address:
        cell = nbformat.v4.new_code_cell(FIRST_CELL.format(address=address), id="colab")
        notebook.cells.insert(0, cell)
    return notebook


def without_solutions(notebook: NotebookNode) -> NotebookNode:
    notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]
    return notebook


def index() -> str:
    """Return the page that lists all lessons, the path of five first."""
    entries = _build.index()
    lessons = [
        f"- **[{slug[:2]} · {entry['title']}]({slug}.ipynb)** · {entry['minutes']} minutes · {entry['level']}\\\n"
        f"  {entry['claim']}"
        for slug, entry in entries.items()
    ]
    return INDEX.format(
        path=_build.five_lessons(),
        lessons="\n".join(lessons),
        slugs="\n".join(entries),
        reference="\n".join(_reference.PAGES),
    )


def write_sources(folder: Path, *, solutions: bool, address: str | None) -> None:
    """What Sphinx reads: pages, and under `beside` what it copies as it is."""
    shutil.copytree(STYLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(LESSONS / "diagrams", folder / "diagrams")
    for name in ("NOTATION.md", "DECISION_CARD.md", "PAPERS.md"):
        shutil.copy(LESSONS / name, folder)
    static, notebooks = folder / "static", folder / "beside" / "notebooks"
    pictures = static / "pictures"
    for needed in (pictures, notebooks):
        needed.mkdir(parents=True)
    for path in sorted(LESSONS.glob("[0-9][0-9]_*.ipynb")):
        for target in (folder, notebooks):
            notebook = nbformat.read(path, as_version=4)
            notebook = notebook if solutions else without_solutions(notebook)
            made = copy(notebook, address) if target is notebooks else page(notebook, path.stem, address, pictures)
            nbformat.write(made, target / path.name)
    (folder / "index.md").write_text(index(), encoding="utf-8")
    _reference.write(folder)
    shutil.copytree(MODULES / "katex/dist/fonts", static / "fonts", ignore=lambda _, names: _other_fonts(names))
    for script in (
        "katex/dist/katex.min.js",
        "katex/dist/katex.min.css",
        "katex/dist/contrib/auto-render.min.js",
    ):
        shutil.copy(MODULES / script, static)
    drawing = MODULES / "plotly.js-cartesian-dist-min/plotly-cartesian.min.js"
    (static / "plotly.js").write_bytes(packed_script(drawing))


def _other_fonts(names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".woff2")]


def write(target: Path, *, solutions: bool = True, address: str | None = None) -> None:
    """Replace `target` by the pages. Raises `CalledProcessError` if Sphinx finds a fault in a lesson."""
    with tempfile.TemporaryDirectory() as work:
        sources, made = Path(work) / "sources", Path(work) / "pages"
        write_sources(sources, solutions=solutions, address=address)
        sphinx = [TOOL / "bin" / "python", "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
        options = ["--builder", "html", "--doctree-dir", Path(work) / "doctrees"]
        subprocess.run([*sphinx, *options, sources, made], check=True)
        for shown in made.glob("*.html"):
            shown.write_text(PLAIN.sub(r"\1", shown.read_text(encoding="utf-8")), encoding="utf-8")
        for unread in made.rglob("*.map"):  # of the theme's own scripts and styles
            unread.unlink()
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)


def main(options: list[str]) -> None:
    if set(options) - {"--without-solutions"}:
        sys.exit(f"unknown options {options}; there is --without-solutions.")
    write(TARGET, solutions=not options, address=public_address(ROOT))
    size = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file())
    print(f"{TARGET.relative_to(ROOT)}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
