"""What moves with a threshold: shown by a run of the page, and by the answers that a dragged threshold gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st
from browser.picture import picture
from browser.restating import restate
from words import words

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
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of what else moves: CSS selector → texts of the elements that it finds."""


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
                help=words.plain(number.help),
                width=number.width,
            )
    for row in moving.rows:
        for place, (key, each) in zip(st.columns(len(row), gap="medium"), row.items(), strict=True):
            with place:
                picture(each.title, each.figure, key=key, caption=each.caption, source=each.source)
    if moving.refused:
        st.info(words.plain(moving.refused))
    with numbers:
        restate(_texts(moving), [key for row in moving.rows for key in row])


def moved(moving: Moving) -> Moved:
    """The same for a page that shows it already."""
    return Moved(_texts(moving), {key: each.figure for row in moving.rows for key, each in row.items()})


def _texts(moving: Moving) -> dict[str, Sequence[str]]:
    values = [number.text for number in moving.numbers.values()]
    beside = [number.beside for number in moving.numbers.values() if number.beside is not None]
    return {
        '.st-key-numbers [data-testid="stMetricValue"]': values,
        '.st-key-numbers [data-testid="stMetricDelta"]': beside,
        **moving.texts,
    }
