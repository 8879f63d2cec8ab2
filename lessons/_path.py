"""Measure a lesson's path: its length, its minutes, and the numbers in its prose that were typed by hand.

`python lessons/_path.py [01_importance_weights …]` prints all three.

The path ends where *More practice* begins, which is folded like the appendix after it. A learner reads the prose, the
equations and the tables, runs the visible cells, looks at the pictures, writes down the predictions, answers the
questions and writes the exercises. Cells tagged `check` or `solution` belong to the exercise before them. A cell tagged
`hide-input` shows only its output.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

LESSONS = Path(__file__).resolve().parent
PRACTICE, APPENDIX = "## More practice", "## Appendix"
MARKDOWN, PLOTLY = "text/markdown", "application/vnd.plotly.v1+json"

WORDS_A_MINUTE = 100  # text with mathematics is read at 80 to 120
MINUTES_A_CELL = 1.0
MINUTES_A_PREDICTION = 3.0
MINUTES_A_QUESTION = 4 / 3  # three questions of "Check yourself" take four minutes, the two of "Warm-up" fewer
MINUTES_A_PICTURE = 1.5
MINUTES_A_SLIDER = 2.0  # on top of its picture
MINUTES_AN_EQUATION = 1.0
MINUTES_A_LINE = 0.1  # of a table or of printed numbers
DEBUGGING = (
    1.6  # an exercise states the minutes of its writing; finding out why it is wrong takes more than half as long
)

EXERCISE = re.compile(r"Exercise|mini\.py")
TABLE_LINE = re.compile(r"^\|(?![-|: ]+$).*\|$", re.MULTILINE)

PREDICTION = re.compile(r"^## Predict, then reveal", re.MULTILINE)
QUESTION = re.compile(r"^\*\*\d+\. ", re.MULTILINE)
"""How a question of a quiz begins."""

BY_HAND = re.compile(r"by hand|^Exercise|^mini\.py|^Warm-up|^Check yourself|^References", re.IGNORECASE)
"""Headings under which a reader computes the numbers, or answers with them."""

SOURCE = re.compile(r"\]\(https://|`make bench ARGS=")
"""What names the source of a paragraph's numbers."""

NO_NUMBERS = (
    r"```.*?```|`[^`]*`",  # code
    r"\]\([^)]*\)|</?\w[^>]*>",  # where links lead, and HTML
    r"^#.*$",  # headings
    r"^ *(\*\*)?\d\. ",  # what numbers a list or a quiz
    r"\*\d+ minutes?\b",  # how long an exercise takes
    r"(?i)\b(lessons?|exercises?|checks?|hints?|pieces?|chapters?|steps?)\s(\d+(, | and | to | or )?)+",
    r"\b\d+ bits?\b|\b95 %",  # a format, and the level of every interval
    r"\b[^\W\d]+[-–]?\d[\w.-]*",  # names: bf16, k2, e5m2, Qwen2.5, SmolLM2-135M
)
SMALL = re.compile(r"(?<![\d.,])[01](?![\d.,]*\d)")
"""0 and 1 are where ratios, weights and shares begin and end."""


@dataclass(frozen=True)
class Length:
    """The length of a lesson's path: words of prose, cells, lines of the longest visible code, minutes."""

    words: int
    cells: int
    longest: int
    minutes: float


def length(notebook: NotebookNode) -> Length:
    """Return the length of a built notebook's path.

    The Markdown that cells print counts as prose.
    """
    cells = [cell for cell in path(notebook) if not _tags(cell) & {"check", "solution"}]
    words = sum(len(prose.split()) for cell in cells for prose in _read(cell))
    longest = max(len(cell.source.splitlines()) for cell in _visible(cells))
    return Length(words, len(cells), longest, sum(map(minutes, sections(notebook).items())))


def sections(notebook: NotebookNode) -> dict[str, list[NotebookNode]]:
    """Return heading → cells of the path. A Markdown cell is divided at its headings; the title is the first."""
    return divided(path(notebook), "##?")


def divided(cells: list[NotebookNode], signs: str) -> dict[str, list[NotebookNode]]:
    """Return heading → cells, divided at headings whose number signs match this expression."""
    parts: dict[str, list[NotebookNode]] = {}
    heading = ""
    for cell in cells:
        if cell.cell_type == "code":
            parts[heading].append(cell)
            continue
        for text in filter(str.strip, re.split(rf"^(?={signs} )", cell.source, flags=re.MULTILINE)):
            heading = next(iter(re.findall(rf"\A{signs} (.*)", text)), heading)
            parts.setdefault(heading, []).append(nbformat.v4.new_markdown_cell(text))
    return parts


def minutes(section: tuple[str, list[NotebookNode]]) -> float:
    """Return how long a learner takes for a section: heading and cells."""
    heading, cells = section
    cells = [cell for cell in cells if not _tags(cell) & {"check", "solution"}]
    to_run = [cell for cell in _visible(cells) if "raise NotImplementedError(" not in cell.source]
    prose = "\n".join(text for cell in cells for text in _read(cell))
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [output.data[PLOTLY] for output in outputs if PLOTLY in output.get("data", {})]
    printed = sum(len(output.text.splitlines()) for output in outputs if output.output_type == "stream")
    written = sum(map(int, re.findall(r"^\*(\d+) minutes?\.\*", prose, re.MULTILINE)))
    return (
        len(prose.split()) / WORDS_A_MINUTE
        + len(to_run) * MINUTES_A_CELL
        + len(PREDICTION.findall(prose)) * MINUTES_A_PREDICTION
        + len(QUESTION.findall(prose)) * MINUTES_A_QUESTION
        + len(pictures) * MINUTES_A_PICTURE
        + sum("sliders" in figure["layout"] for figure in pictures) * MINUTES_A_SLIDER
        + prose.count("$$") / 2 * MINUTES_AN_EQUATION
        + (len(TABLE_LINE.findall(prose)) + printed) * MINUTES_A_LINE
        + written * (DEBUGGING if EXERCISE.match(heading) else 1)
    )


def _visible(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if cell.cell_type == "code" and "hide-input" not in _tags(cell)]


def stated(minutes: float) -> int:
    """Round up to five minutes, as the index states them."""
    return 5 * math.ceil(minutes / 5)


def path(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells before the first part that is folded."""
    return notebook.cells[: _start(notebook, (PRACTICE, APPENDIX))]


def practice(notebook: NotebookNode) -> float:
    """Return the minutes of *More practice*, which a lesson does not count."""
    cells = notebook.cells[_start(notebook, (PRACTICE, APPENDIX)) : _start(notebook, (APPENDIX,))]
    return sum(map(minutes, divided(cells, "###?").items()))


def _start(notebook: NotebookNode, headings: tuple[str, ...]) -> int:
    starts = (n for n, cell in enumerate(notebook.cells) if cell.source.startswith(headings))
    return next(starts, len(notebook.cells))


def typed_numbers(notebook: NotebookNode) -> Iterator[str]:
    """Yield where in the Markdown a number was typed that a reader does not compute, once per paragraph.

    A paragraph that begins "By hand" may have numbers, and one that names its source, a link or a benchmark of this
    project, may have those of the source.
    """
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for paragraph in re.split(r"\n\s*\n", cell.source):
            heading = next(iter(re.findall(r"^#+ (.*)", paragraph, re.MULTILINE)), heading)
            if BY_HAND.search(heading) or paragraph.startswith("By hand") or SOURCE.search(paragraph):
                continue
            rest = paragraph
            for pattern in NO_NUMBERS:
                rest = re.sub(pattern, " ", rest, flags=re.DOTALL if pattern.startswith("```") else re.MULTILINE)
            rest = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", _numbers_of_formula, rest, flags=re.DOTALL)
            if number := re.search(r"\d", SMALL.sub(" ", rest)):
                yield " ".join(rest[max(number.start() - 40, 0) :].split())[:60]


def _numbers_of_formula(formula: re.Match[str]) -> str:
    """Return the numbers of a formula that may have been measured: a single digit is a factor or an exponent."""
    return " ".join(re.findall(r"\d+[.,]\d+|\d{2,}", formula.group()))


def _read(cell: NotebookNode) -> Iterator[str]:
    """Yield what a learner reads of a cell, without its list of references."""
    if cell.cell_type == "markdown":
        yield re.sub(r"\]\([^)]*\)|</?\w[^>]*>", " ", cell.source.partition("## References")[0])
    for output in cell.get("outputs", []):
        if MARKDOWN in output.get("data", {}):
            yield re.sub(r"</?\w[^>]*>", " ", output.data[MARKDOWN])


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def main(names: list[str]) -> None:
    total, more = 0.0, 0.0
    for source in sorted(LESSONS.glob("[0-9][0-9]_*.ipynb")):
        if names and source.stem not in names:
            continue
        notebook = nbformat.read(source, as_version=4)
        long = length(notebook)
        print(f"{source.stem:32} {long.words:5} words {long.cells:3} cells  longest {long.longest:3}  "
              f"{long.minutes:4.1f} minutes: {stated(long.minutes)}, practice {practice(notebook):.1f}")  # fmt: skip
        total, more = total + long.minutes, more + practice(notebook)
        for paragraph in typed_numbers(notebook) if names else ():
            print(f"    typed: … {paragraph}")
    print(f"together {total / 60:.1f} hours, and {more / 60:.1f} of practice")


if __name__ == "__main__":
    main(sys.argv[1:])
