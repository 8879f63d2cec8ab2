"""Which pages there are, which one is shown, and the way from one to another with what the URL says."""

from collections.abc import Mapping

import streamlit as st
from streamlit.navigation.page import Page

from state import address, fields, session
from state.session import DEFAULT_PRESET


def set_pages(pages: Mapping[str, Page]) -> None:
    st.session_state["pages"] = pages


def pages() -> Mapping[str, Page]:
    """Name → page, in the order of the navigation."""
    return st.session_state["pages"]


def configured() -> dict[str, str]:
    """The preset that was chosen last and what was changed about it, as a link says it."""
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    return ({} if preset == DEFAULT_PRESET else {"preset": preset}) | fields.in_url()


def link_to(name: str, query: Mapping[str, str], label: str) -> None:
    """A link to another view with the run and the preset that `query` names, or else those that are chosen; nothing is
    changed about a preset that it names but what it says. It makes one entry in the browser's history."""
    kept = {key: st.query_params[key] for key in ("hide", "projector") if key in st.query_params}
    # The browser keeps what the address says of widgets that all pages have, and would name them twice.
    placed = {} if "run" in query or "run" in st.query_params else session.placed()
    preset = {} if "preset" in query else configured()
    st.page_link(pages()[name], label=label, query_params={**placed, **preset, **kept, **query}, width="stretch")


def enter(name: str) -> bool:
    """Note that another view is shown, and say so; changing the view empties the URL of what is not a widget."""
    another = st.session_state.get("view") != name
    if another:
        st.session_state["view"] = name
        address.forget()
        for came_back in ("came_back", "token_came_back", "with_came_back", "answers_came_back"):
            st.session_state[came_back] = True
        if "preset" in st.query_params:  # a link that names one says all that is changed about it
            st.session_state["came_back"] = False
        st.session_state["second"] = False
    return another
