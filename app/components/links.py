"""Links to other views. A plain click changes what the link names and stays in this session.

Any other click, such as one with Ctrl, opens the address of the link as a browser does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import state
import streamlit as st
from streamlit.components.v2 import component

from components.sources import script, style

_mount = component("rlcorr_links", css=style("links.css"), js=script("links.js"), isolate_styles=False)


@dataclass(frozen=True)
class Link:
    """A link: its label, and what it changes, as an address has it: key → text. Everything else stays as it is."""

    label: str
    to: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    """An address of another site, instead of a view."""


def links(*shown: Link, key: str, current: str | None = None, width: Literal["stretch", "content"] = "content") -> None:
    """Show links in a row. `current`: the label of the one that leads to this page."""
    data = [
        {
            "label": link.label,
            "to": None if link.address else dict(link.to),
            "href": link.address or state.address_of(link.to),
            "current": link.label == current,
        }
        for link in shown
    ]
    _mount(data=data, key=key, width=width, on_go_change=lambda: state.follow(st.session_state[key]["go"]))
