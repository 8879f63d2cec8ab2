"""Sentences with measured numbers in them: written from the results, so that they are compared when lessons are tested.

A sentence that says "more", "less" or "cannot be distinguished" takes its interval from `above`, `below` or `untold`:
each stops the lesson if the interval does not carry it.
"""

from textwrap import dedent

from IPython.display import display
from show import text

from rlcorr.gradients.bootstrap import Interval


def say(markdown: str) -> None:
    """Show a paragraph, in which numbers were filled in from results: `say(f"The engine gave it {q:.3f}.")`."""
    display({"text/markdown": dedent(markdown).strip()}, raw=True)


def reveal(markdown: str) -> None:
    """Show what `say` shows, folded in every front end: the answer to *Predict, then reveal*."""
    say(f"<details><summary>Reveal</summary>\n\n{dedent(markdown).strip()}\n\n</details>")


def above(interval: Interval, than: float = 0.0, digits: int = 2) -> str:
    """Return the interval as text. Raises `AssertionError` unless all of it is above `than`."""
    assert interval.low > than, f"{bracketed(interval, digits)} reaches {than}: nothing is said to be above it."
    return bracketed(interval, digits)


def below(interval: Interval, than: float = 0.0, digits: int = 2) -> str:
    """Return the interval as text. Raises `AssertionError` unless all of it is below `than`."""
    assert interval.high < than, f"{bracketed(interval, digits)} reaches {than}: nothing is said to be below it."
    return bracketed(interval, digits)


def untold(interval: Interval, than: float = 0.0, digits: int = 2) -> str:
    """Return the interval as text. Raises `AssertionError` unless it contains `than`: no significant difference."""
    assert interval.low <= than <= interval.high, f"{bracketed(interval, digits)} differs significantly from {than}."
    return bracketed(interval, digits)


def bracketed(interval: Interval, digits: int = 2) -> str:
    """value [low, high]: the value and the 95 % interval around it."""
    value, low, high = (text(float(x), digits) for x in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]"
