"""The live part of a page: the sliders of bounds, and the numbers, pictures and texts that move with them.

One component owns all these elements. While a thumb moves, the component looks up its new content in the strip of the
slider. The page runs again when the thumb is let go, and state.py takes the value. The static site shows the same part
with the same data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import state
import streamlit as st
from streamlit.components.v2 import component

from components.markdown import inline
from components.offers import offer
from components.picture import Picture, headed_data
from components.sources import script, style
from rlcorr.strips.packing import Package, pack

ANSWER = "answer"
"""The name of the text above the numbers, which says in a sentence what they show."""


@dataclass(frozen=True)
class Slider:
    """A range input over a list of values."""

    key: str
    label: str
    values: Sequence[float]
    value: float
    """One of `values`."""
    generation: int
    """If this number changes, the thumb goes back to `value`, even while somebody drags it."""
    strip: str | None = None
    """The address of the strip, which the static site adds in the browser."""
    exact: tuple[float, float] | None = None
    """Any number between these two can also be typed. If None, nothing can be typed."""
    text: str = ""
    """The name of the moving text below the slider, if it has one."""
    help: str = ""


def offered(
    key: str, label: str, values: Sequence[float], value: float, make: Callable[[], Package], version: str, **more: Any
) -> Slider:
    """Return a slider of a field of state.py, whose strip is made when the browser asks for it.

    The key is that of the field, with `live_` before it if it is a bound. Strips with the same `version` are equal.
    `more` has the slider's `exact`, `text` and `help`.
    """
    address = offer("strips", key, lambda: pack(make()), version=version)
    return Slider(key, label, values, value, state.generation(key.removeprefix(f"{state.LIVE}_")), address, **more)


@dataclass(frozen=True)
class Number:
    """A headline number. `help` and `beside`, for example its interval, are plain text."""

    text: str
    help: str
    beside: str | None = None


@dataclass(frozen=True)
class Note:
    """Markdown, and the name of the moving text after it, if there is one."""

    lead: str
    text: str = ""


@dataclass(frozen=True)
class LiveContent:
    """The content of a live part: numbers by their label, rows of pictures by their key, texts and tables."""

    numbers: Mapping[str, Number]
    rows: Sequence[Mapping[str, Picture]]
    refused: str = ""
    """Why pictures are missing, if some are."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Name → plain text, for sliders and notes; the one named `ANSWER` is shown above the numbers."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Name → HTML, for notes."""
    said: str = ""
    """Markdown below the answer that does not change with a bound."""
    notes: Sequence[Note] = ()
    """Shown side by side, at the end."""

    @property
    def pictures(self) -> dict[str, Picture]:
        """Return the pictures of all rows."""
        return {key: shown for row in self.rows for key, shown in row.items()}


def part_data(
    sliders: Sequence[Slider], content: LiveContent, source: str, resets: Mapping[str, str]
) -> dict[str, Any]:
    """Return what `live_part.js` needs."""
    return {
        "sliders": [vars(slider) | {"values": list(slider.values)} for slider in sliders],
        "resets": dict(resets),
        "numbers": [{"label": label, **vars(number)} for label, number in content.numbers.items()],
        "rows": [
            [headed_data(key, one, source) | {"above": inline(one.above)} for key, one in row.items()]
            for row in content.rows
        ],
        "refused": content.refused,
        "said": inline(content.said),
        "texts": dict(content.texts),
        "tables": dict(content.tables),
        "notes": [{"lead": inline(note.lead), "text": note.text} for note in content.notes],
    }


_mount = component(
    "rlcorr_live_part",
    css=style("live_part.css") + style("picture.css") + style("hero.css"),
    js=script("live_part.js"),
    isolate_styles=False,
)


def live_part(
    sliders: Sequence[Slider],
    content: LiveContent,
    *,
    source: str,
    resets: Mapping[str, str],
) -> None:
    """Show the live part, of which a page has one.

    Args:
        sliders: The sliders. The key of each is that of a field of state.py, with `live_` before it if it is a bound.
        content: The content for the present values of the sliders.
        source: Which run, step and file the pictures show.
        resets: Slot → label of the button that resets its configuration.
    """
    data = part_data(sliders, content, source, resets) | {"run": state.run_number()}
    _mount(
        data=data, key=state.LIVE, on_moved_change=state.press,
        on_reset_change=lambda: state.reset(st.session_state[state.LIVE]["reset"]),
    )  # fmt: skip
