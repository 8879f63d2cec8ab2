"""Write the five lessons as slides: `python lessons/_slides.py` fills build/slides/ with one page for each.

Nothing is written twice. A slide has of a section what a class looks at: steps, formulas, tables, sentences with bold
words, and pictures. What came out is folded, so that the class can guess first. The rest the teacher says.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

import _build
import _path
import nbformat
from _pages import MARKDOWN, MODULES, PNG
from markdown_it import MarkdownIt
from nbformat import NotebookNode

LESSONS = Path(__file__).resolve().parent
TARGET = LESSONS.parent / "build" / "slides"
MARKDOWN_IT = MarkdownIt("commonmark", {"html": True}).enable("table")
LINES, WORDS, LETTERS, BESIDE_A_PICTURE = 12, 40, 500, 200
"""Printed lines, words of a paragraph, and letters without and with a picture that fit on a slide."""
LEADS_IN = re.compile(r"(?<![.?!>])(?<!\$\$)(</strong>)?\s*</p>\s*$")
"""How a paragraph ends that needs the formula or the list after it."""
TABLE_ROW = re.compile(r"^\| (\d\d) \| (.*?) \| (.*?\?)", re.MULTILINE)
"""Of TEACHING.md: lesson, two sentences, question."""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<link rel="stylesheet" href="katex/katex.min.css"><script defer src="katex/katex.min.js"></script>
<script defer src="katex/auto-render.min.js"></script><style>
html {{ font: clamp(16px, 1.9vw, 34px)/1.35 system-ui, sans-serif; color: #1f2937; background: #fff;
  scroll-snap-type: y mandatory }}
body {{ margin: 0 }}
section {{ box-sizing: border-box; min-height: 100vh; padding: 4vh 6vw; scroll-snap-align: start; display: flex;
  flex-direction: column; justify-content: center; break-after: page }}
h1 {{ font-size: 2em; margin: 0 }} h2 {{ font-size: 1.3em; margin: 0 0 0.5em }} p, ul, ol {{ margin: 0.4em 0 }}
img {{ width: 85%; max-height: 60vh; object-fit: contain; align-self: center }}
pre {{ font-size: 0.7em; margin: 0.5em 0; overflow-x: auto }} table {{ border-collapse: collapse; font-size: 0.7em }}
td, th {{ padding: 0.25em 0.7em; text-align: left; border-bottom: 1px solid #d1d5db }}
details {{ margin-top: 0.5em }} summary {{ cursor: pointer; color: #2c6e58 }} a {{ color: #2c6e58 }}
</style></head><body>{slides}<script>
// Keys of a presenter: the next or the previous slide.
addEventListener("keydown", (event) => {{
  const way = {{ ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 }}[event.key]
  if (!way || event.target.closest("summary, a")) return
  event.preventDefault()
  const all = [...document.querySelectorAll("section")]
  const tops = all.map((slide) => Math.abs(slide.getBoundingClientRect().top))
  all[tops.indexOf(Math.min(...tops)) + way]?.scrollIntoView()
}})
addEventListener("load", () => renderMathInElement(document.body, {{ delimiters: [
  {{ left: "$$", right: "$$", display: true }}, {{ left: "$", right: "$", display: false }}] }}))
</script></body></html>
"""


def slides(notebook: NotebookNode) -> Iterator[str]:
    """Yield the slides of a lesson as HTML, without its title, its questions, Pitfalls and References."""
    for heading, cells in list(_path.sections(notebook).items())[1:]:
        if heading.startswith(("Check yourself", "Pitfalls", "References", "In the app")):
            continue
        for parts in grouped(part for cell in cells for part in parts_of(cell)):
            yield slide(heading, parts)


def grouped(all_parts: Iterable[str]) -> Iterator[list[str]]:
    """Divide the parts of a section into slides: one picture each, and no more letters than fit."""
    parts: list[str] = []
    for part in all_parts:
        is_after_picture = any(before.startswith("<img") for before in parts)
        if part.startswith("<details"):
            kept = len(parts)
        elif part.startswith("<img") and not is_after_picture:
            kept = 1 if letters(parts) > BESIDE_A_PICTURE else len(parts)  # the last says what to look for
        else:
            leads_in = bool(parts and LEADS_IN.search(parts[-1]))
            kept = int(leads_in) if is_after_picture or letters([*parts, part]) > LETTERS else len(parts)
        if kept < len(parts):
            yield parts[: len(parts) - kept]
            parts = parts[len(parts) - kept :]
        parts.append(part)
    if parts:
        yield parts


def letters(parts: list[str]) -> int:
    """Count what is read of a slide, without what is folded."""
    return sum(len(re.sub(r"<[^>]*>", "", part)) for part in parts if not part.startswith(("<img", "<details")))


def parts_of(cell: NotebookNode) -> Iterator[str]:
    """Yield what a slide has of a cell, as HTML; nothing of the checks and solutions of exercises."""
    if cell.cell_type == "markdown":
        yield from shown(cell.source)
        return
    for output in cell.outputs if not {"check", "solution"} & set(cell.metadata.get("tags", [])) else []:
        data = output.get("data", {})
        if PNG in data:
            yield f'<img src="data:image/png;base64,{data[PNG].strip()}" alt="{escape(output.metadata[PNG]["alt"])}">'
        elif MARKDOWN in data:
            said = re.sub(r"^<details><summary>\w*</summary>|</details>$", "", data[MARKDOWN])  # of `reveal`
            yield f"<details><summary>What came out</summary>{rendered(said)}</details>"
        elif output.output_type == "stream" and len(output.text.splitlines()) <= LINES:
            yield f"<details><summary>The numbers</summary><pre>{escape(output.text)}</pre></details>"


def shown(text: str) -> list[str]:
    """Return what a slide has of a text: lists, formulas, tables, short paragraphs and sentences with bold words."""
    kept = []
    for part in re.split(r"\n\s*\n", text):
        if "$$" in part or re.match(r"[|\-]|\d\.|!\[", part):
            kept.append(part)
        elif "**" in part:
            sentences = [part] if len(part.split()) <= WORDS else re.split(r"(?<=[.?!])\s+(?=[A-Z*])", part)
            kept.append(" ".join(sentence for sentence in sentences if "**" in sentence))
    return [rendered(part) for part in kept]


def rendered(text: str, *, is_block: bool = True) -> str:
    """Render Markdown as HTML; formulas stay as they are, for KaTeX."""
    formulas = re.findall(r"\$\$.*?\$\$|\$[^$\n]+\$", text, re.DOTALL)
    for number, formula in enumerate(formulas):
        text = text.replace(formula, f"formula{number:03}", 1)
    html = MARKDOWN_IT.render(text) if is_block else MARKDOWN_IT.renderInline(text)
    for number, formula in enumerate(formulas):
        html = html.replace(f"formula{number:03}", escape(formula), 1)
    return html


def slide(heading: str, parts: list[str]) -> str:
    return f"<section><h2>{rendered(heading, is_block=False)}</h2>{''.join(parts)}</section>"


def write(target: Path) -> None:
    """Replace `target` by the pages, and print how many slides each has."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(MODULES / "katex/dist", target / "katex", ignore=shutil.ignore_patterns("*.mjs", "*.ttf", "*.woff"))
    shutil.copy(MODULES / "katex/dist/contrib/auto-render.min.js", target / "katex")
    rows = {number: rest for number, *rest in TABLE_ROW.findall((LESSONS / "TEACHING.md").read_text(encoding="utf-8"))}
    for slug, entry in _build.index().items():
        if "decides" not in entry:
            continue
        title, notebook = f"{slug[:2]} · {entry['title']}", nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4)
        said, question = rows[title[:2]]
        first = f"<section><h1>{escape(title)}</h1><p>{escape(entry['decides'])}</p></section>"
        begins, ends = slide("Show of hands", [rendered(question)]), slide("To take home", [rendered(said)])
        made = [first, begins, *slides(notebook), ends]
        path = target / f"{title[:2]}.html"
        path.write_text(PAGE.format(title=escape(title), slides="\n".join(made)), encoding="utf-8")
        print(f"{path}: {len(made)} slides")


if __name__ == "__main__":
    write(TARGET)
