"""Sliders, each with what happens to its value, and what moves with them: a part of the page that is dragged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from components.live_part import Moving, Slider, live_part
from state import fields, session


@dataclass(frozen=True)
class Dragged:
    """A slider, and what takes its value before the page runs: the value, and whether it has been let go."""

    slider: Slider
    put: Callable[[float, bool], None]


def show(
    dragged: Sequence[Dragged], moving: Moving, *, key: str, resets: Mapping[str, str], source: str | None = None
) -> None:
    """To be called in a fragment that holds nothing else: that is what makes it quick when the thumb is let go."""
    put = {moved.slider.key: moved.put for moved in dragged}
    live_part(
        [moved.slider for moved in dragged],
        moving,
        key=key,
        source=session.source() if source is None else source,
        resets=resets,
        on_move=lambda slider, value, done: put[slider](value, done),
        on_reset=fields.reset,
    )
