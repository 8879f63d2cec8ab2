"""The live part of a page: the sliders of bounds, and the numbers, pictures and texts that move with them.

One component owns all these elements. While a thumb moves, it looks up in the strip of the slider what belongs to each
place; until that has come, or where there is none, it asks the server (see drag.py). The page runs again once the thumb
has been let go. The page without installation shows the same part over the same data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st
from state.session import new_run
from streamlit.components.v2 import component

from components.markdown import inline
from components.picture import drawn
from components.sources import script, style
from rlcorr.figures.canvas import Figure

ANSWER = "answer"
"""The name of the text that stands before the numbers: what they say, in a sentence."""


@dataclass(frozen=True)
class Slider:
    """A range input over these places, of which the value is one."""

    key: str
    label: str
    places: Sequence[float]
    value: float
    generation: int
    """A new one puts the thumb back on the value, also while somebody drags."""
    address: str | None
    """Answers for a value; without one the page runs again and again while the thumb moves."""
    strip: str | None = None
    """The address of the strip, if there is one."""
    exact: tuple[float, float] | None = None
    """Between these any number can be typed as well, which becomes a place; without them its places are all."""
    plays_to: float | None = None
    """The place to which the thumb goes and from which it comes back by itself, once, if there is one."""
    text: str = ""
    """The name of the moving text below it, if it has one."""
    help: str = ""


@dataclass(frozen=True)
class Number:
    """A headline; `help` and `beside`, such as its interval, are plain text."""

    text: str
    help: str
    beside: str | None = None


@dataclass(frozen=True)
class Picture:
    """A figure under its title and over its caption, both Markdown, and where it comes from, if not from `source` of
    all. A sentence `above` them all, also Markdown, does not move with a threshold."""

    figure: Figure
    title: str
    caption: str
    source: str | None = None
    above: str = ""


@dataclass(frozen=True)
class Note:
    """Markdown, and the name of the moving text that follows it, if one does."""

    lead: str
    text: str = ""


@dataclass(frozen=True)
class Moving:
    """Numbers by their label, rows of pictures by their key, and why pictures are missing, if some are."""

    numbers: Mapping[str, Number]
    rows: Sequence[Mapping[str, Picture]]
    refused: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Plain text by the name under which sliders and notes show it; `ANSWER` stands before the numbers."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """HTML by the name under which notes show it."""
    notes: Sequence[Note] = ()
    """Side by side, at the end."""

    @property
    def pictures(self) -> dict[str, Picture]:
        """All of them."""
        return {key: shown for row in self.rows for key, shown in row.items()}

    def moved(self) -> dict[str, Any]:
        """For a page that shows the rest already, as JSON."""
        return {
            "numbers": {label: {"text": n.text, "beside": n.beside} for label, n in self.numbers.items()},
            "texts": dict(self.texts),
            "tables": dict(self.tables),
            "figures": {key: shown.figure.to_json() for key, shown in self.pictures.items()},
        }


def sent(sliders: Sequence[Slider], moving: Moving, source: str, resets: Mapping[str, str]) -> dict[str, Any]:
    """As `live_part.js` takes it."""
    return {
        "sliders": [vars(slider) | {"places": list(slider.places)} for slider in sliders],
        "resets": dict(resets),
        "numbers": [{"label": label, **vars(number)} for label, number in moving.numbers.items()],
        "rows": [[_sent_picture(key, shown, source) for key, shown in row.items()] for row in moving.rows],
        "refused": moving.refused,
        "texts": dict(moving.texts),
        "tables": dict(moving.tables),
        "notes": [{"lead": inline(note.lead), "text": note.text} for note in moving.notes],
    }


def _sent_picture(key: str, shown: Picture, source: str) -> dict[str, Any]:
    title, caption = inline(shown.title), inline(shown.caption)
    return {
        "key": key,
        "heading": title,
        "caption": caption,
        "above": inline(shown.above),
        **drawn(shown.figure, shown.title, shown.caption, source if shown.source is None else shown.source),
    }


_mount = component(
    "rlcorr_live_part",
    css=style("live_part.css") + style("picture.css"),
    js=script("live_part.js"),
    isolate_styles=False,
)


def live_part(
    sliders: Sequence[Slider],
    moving: Moving,
    *,
    key: str,
    source: str,
    resets: Mapping[str, str],
    on_move: Callable[[str, float, bool], None],
    on_reset: Callable[[str], None],
) -> None:
    """Before the page runs again, `on_move` is called with a slider's key, its value, and whether it has been let go;
    `on_reset` with the key of the button that was pressed, of those that `resets` names."""

    def moved() -> None:
        at = st.session_state[key]["at"]
        if at["generation"] == {slider.key: slider.generation for slider in sliders}.get(at["slider"]):
            on_move(at["slider"], float(at["value"]), bool(at["done"]))

    def reset() -> None:
        on_reset(st.session_state[key]["reset"])

    data = sent(sliders, moving, source, resets) | {"run": new_run()}
    shown = _mount(data=data, key=key, on_at_change=moved, on_reset_change=reset)
    if shown.reset is not None:
        st.rerun()  # the other controls are outside this fragment
