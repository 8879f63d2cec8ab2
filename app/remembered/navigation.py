"""Which pages there are, which one is shown, and the way from one to another with what the URL says."""

from collections.abc import Mapping

import streamlit as st
from streamlit.navigation.page import Page

from remembered import fields
from remembered.session import DEFAULT_PRESET


def set_pages(pages: Mapping[str, Page]) -> None:
    st.session_state["pages"] = pages


def pages() -> Mapping[str, Page]:
    """Name → page, in the order of the navigation."""
    return st.session_state["pages"]


def configured() -> dict[str, str]:
    """The preset that was chosen last and what was changed about it, as a link says it."""
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    return ({} if preset == DEFAULT_PRESET else {"preset": preset}) | fields.in_url()


def go(name: str, query: Mapping[str, str] | None = None) -> None:
    """Show another view, with the preset that was chosen last and what `query` says. Widgets that stay write themselves
    to the URL again."""
    kept = dict(query or {}) | {key: st.query_params[key] for key in ("hide", "projector") if key in st.query_params}
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    st.session_state.pop("preset", None)  # the picker takes it from the URL
    st.switch_page(pages()[name], query_params=kept if preset == DEFAULT_PRESET else kept | {"preset": preset})


def enter(name: str) -> bool:
    """Note that another view is shown, and say so; changing the view empties the URL of what is not a widget."""
    another = st.session_state.get("view") != name
    if another:
        st.session_state["view"] = name
        for came_back in ("came_back", "token_came_back", "with_came_back", "answers_came_back"):
            st.session_state[came_back] = True
        st.session_state["second"] = False
    return another
