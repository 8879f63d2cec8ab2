"""A part of the page that shows something that goes on, such as a training run.

The component asks an address of its own every two seconds, and changes nothing outside itself: Streamlit hears of it
only when somebody presses one of its buttons.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from components.offers import offer
from components.picture import Picture, headed_data
from components.sources import script, style


@dataclass(frozen=True)
class WatchedContent:
    """What the part shows now."""

    html: str = ""
    buttons: Mapping[str, str] = field(default_factory=dict)
    """What a button does → its label."""
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    source: str = ""
    """What the pictures show."""
    below: str = ""
    """HTML below the pictures."""
    ends: bool = False
    """Whether nothing changes any more."""

    def data(self) -> dict[str, Any]:
        """Return the content for JSON."""
        pictures = [headed_data(key, shown, self.source) for key, shown in self.pictures.items()]
        return {**vars(self), "buttons": dict(self.buttons), "pictures": pictures}


_mount = component(
    "rlcorr_watched", css=style("watched.css") + style("picture.css"), js=script("watched.js"), isolate_styles=False
)


def watch(content: Callable[[], WatchedContent], *, key: str, on_press: Callable[[str], None]) -> None:
    """Show the content now, and as it changes. `on_press` gets the key of the button that was pressed.

    The server calls `content` later, without a visitor's session, so it must not use Streamlit.
    """
    now = content()
    address = None if now.ends else offer("watched", key, lambda: json.dumps(content().data()).encode())
    data = {"address": address, "content": now.data()}
    _mount(data=data, key=key, on_pressed_change=lambda: on_press(st.session_state[key]["pressed"]))
