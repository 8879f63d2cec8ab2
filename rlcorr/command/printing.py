"""What the verbs print: lines of a fixed width, rows of tables, and numbers with their intervals."""

import math
import textwrap
from collections.abc import Iterable, Sequence

from rlcorr.gradients.bootstrap import Interval

WIDTH = 118
"""Characters of a line of prose."""


def wrapped(text: str, indent: str = "") -> list[str]:
    """Wrap a text into lines, without breaking the names of repositories at their hyphens."""
    following = indent and indent + "  "
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=following, break_on_hyphens=False)


def wrap_each(texts: Iterable[str]) -> list[str]:
    """Wrap every text into lines of its own; a line may also end at a hyphen."""
    return [line for text in texts for line in textwrap.wrap(text, WIDTH)]


def print_lines(lines: Iterable[str]) -> None:
    """Print each line as soon as it is there."""
    for line in lines:
        print(line, flush=True)


def table_row(cells: Iterable[str], widths: Sequence[int]) -> str:
    """Return one line of a table. A column of a negative width is aligned to the left, the others to the right.

    >>> table_row(["k3", "0.1"], [-6, 5])
    'k3      0.1'
    """
    pairs = zip(cells, widths, strict=True)
    return "".join(f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}" for cell, width in pairs)


def interval_text(interval: Interval) -> str:
    return bracketed(interval.value, interval.low, interval.high, "z.3f")


def bracketed(value: float, low: float, high: float, digits: str = ".2f") -> str:
    """Return `0.31 [0.28, 0.35]`, or `– [0.28, 0.35]` if the value is NaN."""
    return f"{'–' if math.isnan(value) else f'{value:{digits}}'} [{low:{digits}}, {high:{digits}}]"
