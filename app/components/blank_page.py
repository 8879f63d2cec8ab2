"""A page that Streamlit has emptied is loaded anew.

Streamlit's frontend (1.67) removes everything that it shows when a message asks for a place that does not exist ("Bad
delta path index"). A page was empty once, on a busy machine, after a training run was stopped there. A likely reason:
where a fragment runs again, Streamlit drops its messages that are not sent yet, and keeps those that follow them.
"""

import streamlit as st
from streamlit.components.v2 import component

from components.sources import script

_mount = component("rlcorr_blank_page", js=script("blank_page.js"))


def reload_when_blank() -> None:
    """Load the page anew when it is empty. Call it once on each page; it shows nothing."""
    with st.container(key="blank_page"):
        _mount(key="reloads_when_blank")
