"""The menu of pages on a phone: a word on its button, and it closes once a page is chosen, as Streamlit's does not."""

import streamlit as st
from streamlit.components.v2 import component

from components.sources import script, style

_mount = component("rlcorr_menu", css=style("menu.css"), js=script("menu.js"), isolate_styles=False)


def close_when_chosen() -> None:
    """Name the menu, and close it after a page is chosen. Call it once on each page; it shows nothing itself."""
    with st.container(key="menu"):
        _mount(key="closes_menu")
