"""A table whose cells may be called good or bad, in a word and by a tint that both themes can show."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from text.formatting import TABLE_STYLE, small, with_tooltip


@dataclass(frozen=True)
class Graded:
    """A cell with a grade."""

    text: str
    is_good: bool


Cell = str | Graded
WORDS = {True: "good", False: "bad"}
STYLE = """<style>
.rl-graded td:not(:first-child) { white-space: nowrap; overflow-wrap: normal }
.rl-graded td:first-child { min-width: 9.5rem }
.rl-graded span { display: inline-block; padding: 1px 6px; border-radius: 4px }
.rl-good { background: #2da44e33 }
.rl-bad { background: #e5534b40; font-weight: 600 }
@media (max-width: 640px) {
  .rl-graded th, .rl-graded td { padding-right: 5px; font-size: 0.75rem }
  .rl-graded td:first-child { min-width: 5.5rem }
  .rl-graded span { padding: 1px 3px }
  .rl-graded i { display: block }
}
.rl-graded i { font-style: normal }
</style>"""


def graded_table(
    header: Sequence[str], rows: Sequence[tuple[str, str, Sequence[Cell]]], meanings: Mapping[str, str]
) -> str:
    """Return an HTML table. A row is its name, a smaller line below it, and its cells, all of them literal text."""
    head = "".join(f"<th>{with_tooltip(cell, meanings)}</th>" for cell in header)
    body = "".join(
        f"<tr><td>{html.escape(name)}{small(below)}</td>{''.join(f'<td>{_marked(cell)}</td>' for cell in cells)}</tr>"
        for name, below, cells in rows
    )
    return (
        f"{TABLE_STYLE}{STYLE}<div class='rl-table rl-graded'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _marked(cell: Cell) -> str:
    if isinstance(cell, str):
        return html.escape(cell)
    word = WORDS[cell.is_good]
    return f"<span class='rl-{word}'>{html.escape(cell.text)} <i>{word}</i></span>"
