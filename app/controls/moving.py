"""What moves with a threshold: shown by a run of the page, and by the answers that a dragged threshold gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st
from browser.picture import picture
from browser.restating import Written, WrittenNumber, restate
from streamlit.delta_generator import DeltaGenerator
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
    """A figure under its title and over its caption, both Markdown; `source` as in `picture`. A sentence `above` them
    all, also Markdown, does not move with a threshold."""

    figure: Figure
    title: str
    caption: str
    source: str | None = None
    above: str = ""


@dataclass(frozen=True)
class Moving:
    """Numbers by their label, rows of pictures by their key, and why pictures are missing, if some are."""

    numbers: dict[str, Number]
    rows: Sequence[dict[str, Picture]]
    refused: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Of what else moves: CSS selector → text of the element that it selects."""
    folded: Mapping[str, Picture] = field(default_factory=dict)
    """Pictures of a box that can be closed; none while it is."""

    @property
    def pictures(self) -> dict[str, Picture]:
        """All of them."""
        return {key: shown for row in (*self.rows, self.folded) for key, shown in row.items()}


def show(moving: Moving, box: DeltaGenerator | None = None) -> None:
    """Numbers, then pictures; what is folded in this box. `texts` are shown by the view."""
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
        _row(row)
    if moving.refused:
        st.info(plain(moving.refused))
    if moving.folded and box is not None:
        with box:
            _row(moving.folded)
    with numbers:
        restate(_written(moving), list(moving.pictures))


def _row(row: Mapping[str, Picture]) -> None:
    for place, (key, shown) in zip(st.columns(len(row), gap="medium"), row.items(), strict=True):
        with place:
            if shown.above:
                st.markdown(shown.above)
            picture(shown.title, shown.figure, key=key, caption=shown.caption, source=shown.source)


def moved(moving: Moving) -> Moved:
    """The same for a page that shows it already."""
    return Moved(_written(moving), {key: shown.figure for key, shown in moving.pictures.items()})


def _written(moving: Moving) -> Written:
    numbers = {label: WrittenNumber(number.text, number.beside) for label, number in moving.numbers.items()}
    return Written(numbers, moving.texts)
