"""Links to other views, a button that copies the link to a page, and one that brings an element into view."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import state
import streamlit as st
from streamlit.components.v2 import component

from components.sources import script, style

_links = component("rlcorr_links", css=style("links.css"), js=script("links.js"), isolate_styles=False)
_copy_link = component(
    "rlcorr_copy_link",
    html="""<button type="button">&nbsp;</button><span role="status"></span><input readonly hidden>""",
    css=style("copy_link.css"),
    js=script("copy_link.js"),
)
_show_me = component(
    "rlcorr_show_me",
    html="""<button type="button" class="rl-show-me" hidden></button>""",
    css=style("show_me.css"),
    js=script("show_me.js"),
    isolate_styles=False,  # the strip of a tour hides the element that a hidden button is in, and its gap
)


@dataclass(frozen=True)
class Link:
    """A link: its label, and what it changes, as an address has it: key → text. Everything else stays as it is."""

    label: str
    to: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    """An address of another site, instead of a view."""


def links(*shown: Link, key: str, current: str | None = None, width: Literal["stretch", "content"] = "content") -> None:
    """Show links in a row. `current`: the label of the one that leads to this page.

    A plain click changes what the link names and stays in this session. Any other click, such as one with Ctrl, opens
    the address of the link as a browser does.
    """
    data = [
        {
            "label": link.label,
            "to": None if link.address else dict(link.to),
            "href": link.address or state.address_of(link.to),
            "current": link.label == current,
        }
        for link in shown
    ]
    _links(data=data, key=key, width=width, on_go_change=lambda: state.follow(st.session_state[key]["go"]))


def copy_link(label: str, address: str, *, key: str) -> None:
    """Show a button that copies an address, and confirms that it did.

    Args:
        label: The text on the button.
        address: The address, relative to the app.
        key: Streamlit's key of the component.
    """
    _copy_link(data={"label": label, "address": address}, key=key)


def show_me(label: str, selector: str, *, key: str) -> None:
    """Show a button that scrolls to the first element of this CSS selector. It is hidden while the element is visible.

    The element may be drawn later than the button.
    """
    _show_me(data={"label": label, "selector": selector}, key=key, width="content")
