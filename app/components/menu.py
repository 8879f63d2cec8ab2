"""The menu of pages on a phone. Streamlit leaves it open over the page that was chosen; this closes it."""

import streamlit as st
from streamlit.components.v2 import component

from components.sources import script

_mount = component("rlcorr_menu", js=script("menu.js"))


def close_when_chosen() -> None:
    """Close the menu after a page is chosen. Call it once on each page; it shows nothing."""
    with st.container(key="menu"):
        _mount(key="closes_menu")
