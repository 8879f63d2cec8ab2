"""The pages, the page that is shown, and links from one to another that keep the run and the preset."""

from collections.abc import Mapping

import streamlit as st
from streamlit.navigation.page import Page

from state import address, fields, session
from state.session import DEFAULT_PRESET


def set_pages(pages: Mapping[str, Page]) -> None:
    st.session_state["pages"] = pages


def pages() -> Mapping[str, Page]:
    """Return name → page, in the order of the navigation."""
    return st.session_state["pages"]


def preset_and_fields() -> dict[str, str]:
    """Return the preset that was chosen last and what was changed about it, as a link writes them."""
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    return ({} if preset == DEFAULT_PRESET else {"preset": preset}) | fields.in_url()


def link_to(name: str, query: Mapping[str, str], label: str) -> None:
    """Show a link to another view, which makes one entry in the browser's history.

    The link has the run and the preset of `query`, or else the ones shown now. If `query` names a preset, the preset
    keeps its own values, except for those that `query` names, too.
    """
    kept = {key: st.query_params[key] for key in ("hide", "projector") if key in st.query_params}
    # The browser itself keeps the URL's values of widgets that all pages have. It would name them twice.
    run_and_step = {} if "run" in query or "run" in st.query_params else session.run_and_step()
    preset = {} if "preset" in query else preset_and_fields()
    st.page_link(pages()[name], label=label, query_params={**run_and_step, **preset, **kept, **query}, width="stretch")


def enter(name: str) -> bool:
    """Return whether another view is shown than before. A change of view empties the URL, except for widgets."""
    is_another = st.session_state.get("view") != name
    if is_another:
        st.session_state["view"] = name
        session.enter()
        address.forget()
        if "preset" in st.query_params:  # a link that names a preset also names everything that is changed about it
            address.set_returning(fields.GROUP, False)
        st.session_state["second"] = False
    return is_another
