"""Format numbers, tables, and text that the app did not write."""

import html
import math
import re
from collections.abc import Mapping, Sequence

from rlcorr.gradients.bootstrap import Interval

Cell = str | Sequence[tuple[str, str]]
"""Cell of a table: a text, or lines with a smaller text below each, such as a title and its slug."""


def plain(text: object) -> str:
    r"""Escape a text for a Markdown element, so that it is shown literally. No line ends between a number and its %.

    >>> plain("58 % of k3: *p*")
    '58\xa0% of k3\\: \\*p\\*'
    """
    escaped = re.sub(r"([\\`*_{}\[\]()#+\-.!|$:<>~&@])", r"\\\1", str(text))
    return re.sub(r"(?<=\d) %", "\u00a0%", escaped)


def number(value: float | None) -> str:
    """Format a number with at most four significant digits; return a dash for None and NaN.

    >>> number(0.0307), number(5.3761e-06), number(None)
    ('0.0307', '5.376e-6', '–')
    """
    return "–" if value is None or math.isnan(value) else short_exponent(f"{value:.4g}")


def short_exponent(text: str) -> str:
    """Return a number without the plus and the zeros of Python's exponents.

    >>> short_exponent("7.185e+09"), short_exponent("4e-05"), short_exponent("1e-10")
    ('7.185e9', '4e-5', '1e-10')
    """
    return re.sub(r"e(-?)\+?0*", r"e\1", text)


def short(value: float) -> str:
    """Format a number with two decimals, a small one with two significant digits, a large one without decimals.

    NaN is a dash.
    """
    if value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or abs(value) < 5e-5 else f"{value:.2g}"


def interval_ends(interval: Interval) -> str:
    """Return the ends of an interval, or that the data do not determine its value."""
    if interval.value != interval.value:  # NaN
        return "unknown from these data"
    return f"{short(interval.low)} to {short(interval.high)}"


def percent(share: float | None) -> str:
    """Format a share in percent: two decimals, none for all and for nothing, which other shares are not rounded to.

    A share may be 1e-6 too small: recorded probabilities are summed in float32.

    >>> percent(1.0), percent(0.99999), percent(0.0443), percent(1e-6), percent(0.0)
    ('100 %', '>99.99 %', '4.43 %', '<0.01 %', '0 %')
    """
    if share is None:
        return "–"
    text = f"{100 * share:.2f}"
    if text == "100.00":
        return ">99.99 %" if share < 1 - 1e-6 else "100 %"
    if text == "0.00":
        return "<0.01 %" if share > 0 else "0 %"
    return f"{text} %"


def probability(share: float) -> str:
    """Format a probability for a title: in percent without decimals, and with two decimals near 0 and 1."""
    return f"{100 * share:.0f} %" if 0.01 <= share < 0.995 else percent(share)


def clipped(text: str, limit: int) -> str:
    """Return at most this many characters of a text, with a mark where it was cut."""
    return text if len(text) <= limit else text[:limit] + " …"


def duration(seconds: float) -> str:
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def table(header: list[str], rows: Sequence[Sequence[Cell]], meanings: Mapping[str, str] | None = None) -> str:
    """Return an HTML table in which every cell is literal text.

    `meanings` explains words of the header and of the first column, as tooltips for mouse and keyboard.
    """
    explained = meanings or {}
    head = "".join(f"<th>{with_tooltip(cell, explained)}</th>" for cell in header)
    cells = [[_cell(cell, {} if i else explained) for i, cell in enumerate(row)] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    return f"<div class='rl-table'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(cell: Cell, meanings: Mapping[str, str]) -> str:
    if isinstance(cell, str):
        return with_tooltip(cell, meanings)
    return "".join(f"<div>{html.escape(line)}{small(below)}</div>" for line, below in cell)


def small(text: str) -> str:
    """Return a literal text as a smaller line of a table; nothing for an empty one."""
    return f"<small>{html.escape(text)}</small>" if text else ""


def paragraph(text: str) -> str:
    """Return a literal text as a paragraph of HTML."""
    return f"<p>{html.escape(text)}</p>"


def swatches(colours: dict[str, str]) -> str:
    """Return an HTML legend: name → colour, each name as literal text after a spot of its colour."""
    spots = "".join(
        f"<span style='margin-right:1.1em'><span style='color:{colour}'>●</span> {html.escape(name)}</span>"
        for name, colour in colours.items()
    )
    return f"<div style='font-size:0.875rem;line-height:1.7;display:flex;flex-wrap:wrap'>{spots}</div>"


def with_tooltip(cell: str, meanings: Mapping[str, str]) -> str:
    """Return a word as literal HTML, with its meaning as a tooltip for mouse and keyboard if it has one."""
    text = html.escape(cell)
    return f'<abbr title="{html.escape(meanings[cell])}" tabindex="0">{text}</abbr>' if cell in meanings else text
