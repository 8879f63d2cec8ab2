"""One entry in the browser's history for each view that is opened, although its address is completed afterwards."""

import streamlit as st
from streamlit.components.v2 import component

from components.sources import script

_mount = component("rlcorr_history_entries", js=script("history_entries.js"))


def one_per_view() -> None:
    """Make the complete address of a view replace its incomplete one. Call it once on each page; it shows nothing."""
    with st.container(key="history_entries"):
        _mount(key="one_entry_per_view")
