"""What moves with a threshold: shown by a run of the page, and by the answers that a dragged threshold gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st
from browser.picture import picture
from browser.restating import Written, WrittenNumber, restate
from words.text import plain

from controls.drag import Moved
from rlcorr.figures.correction import Figure


@dataclass(frozen=True)
class Number:
    """A headline; `help` and `beside`, such as its interval, are plain text, `width` is in pixels."""

    text: str
    help: str
    width: int
    beside: str | None = None


@dataclass(frozen=True)
class Picture:
    """A figure under its title and over its caption, both Markdown; `source` as in `picture`."""

    figure: Figure
    title: str
    caption: str
    source: str | None = None


@dataclass(frozen=True)
class Moving:
    """Numbers by their label, rows of pictures by their key, and why pictures are missing, if some are."""

    numbers: dict[str, Number]
    rows: Sequence[dict[str, Picture]]
    refused: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Of what else moves: CSS selector → text of the element that it selects."""


def show(moving: Moving) -> None:
    """Numbers, then pictures. `texts` are shown by the view."""
    numbers = st.container(horizontal=True, key="numbers")
    with numbers:
        for label, number in moving.numbers.items():
            st.metric(
                label,
                number.text,
                delta=number.beside,
                delta_color="off",
                delta_arrow="off",
                help=plain(number.help),
                width=number.width,
            )
    for row in moving.rows:
        for place, (key, shown) in zip(st.columns(len(row), gap="medium"), row.items(), strict=True):
            with place:
                picture(shown.title, shown.figure, key=key, caption=shown.caption, source=shown.source)
    if moving.refused:
        st.info(plain(moving.refused))
    with numbers:
        restate(_written(moving), [key for row in moving.rows for key in row])


def moved(moving: Moving) -> Moved:
    """The same for a page that shows it already."""
    return Moved(_written(moving), {key: shown.figure for row in moving.rows for key, shown in row.items()})


def _written(moving: Moving) -> Written:
    numbers = {label: WrittenNumber(number.text, number.beside) for label, number in moving.numbers.items()}
    return Written(numbers, moving.texts)
