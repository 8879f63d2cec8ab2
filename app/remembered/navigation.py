"""Which pages there are, which one is shown, and the way from one to another with what the URL says."""

from collections.abc import Mapping

import streamlit as st
from streamlit.navigation.page import Page

from remembered import fields, notices, session
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


def open_view(name: str, query: Mapping[str, str]) -> None:
    """For a button's `on_click`: another view, which shows the run and the preset that `query` names, or else those
    that are chosen; nothing is changed about the preset but what `query` says."""
    st.session_state["opened_view"] = name, dict(query)


def follow() -> None:
    """Show the view that was opened. To be called before the page makes a widget: one that is bound to the URL would
    write itself there first, which is one more press of the browser's Back."""
    opened = st.session_state.pop("opened_view", None)
    if opened is None:
        return
    name, query = opened
    kept = {key: st.query_params[key] for key in ("hide", "projector", "run", "step") if key in st.query_params}
    if "run" in query:
        kept.pop("step", None)
    preset = query.pop("preset", st.session_state.get("last_preset", DEFAULT_PRESET))
    session.choose_preset(preset)
    for key in {"run", "step"} & set(query) | {"preset"}:  # its picker takes it from the URL
        st.session_state.pop(key, None)
        notices.clear(key)
    st.switch_page(pages()[name], query_params=kept | query | ({} if preset == DEFAULT_PRESET else {"preset": preset}))


def enter(name: str) -> bool:
    """Note that another view is shown, and say so; changing the view empties the URL of what is not a widget."""
    another = st.session_state.get("view") != name
    if another:
        st.session_state["view"] = name
        for came_back in ("came_back", "token_came_back", "with_came_back", "answers_came_back"):
            st.session_state[came_back] = True
        st.session_state["second"] = False
    return another
