"""The pages, the page that is shown, and links from one to another that keep the run and the preset."""

from collections.abc import Mapping
from typing import Literal

import streamlit as st
from streamlit.navigation.page import Page

from state import fields, session
from state.session import DEFAULT_PRESET

TOUR, TOUR_STEP, TOUR_DONE = "tour", "tour_step", "tour_done"
"""Keys of the tour that is on, of its step, counted from 1, and of the steps that are done, one digit each."""


def set_pages(pages: Mapping[str, Page]) -> None:
    st.session_state["pages"] = pages


def pages() -> Mapping[str, Page]:
    """Return name → page, in the order of the navigation."""
    return st.session_state["pages"]


def preset_and_fields() -> dict[str, str]:
    """Return the preset that was chosen last and what was changed about it, as a link writes them."""
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    return ({} if preset == DEFAULT_PRESET else {"preset": preset}) | fields.in_url()


def tour_and_step() -> dict[str, str]:
    """Return the tour that is on, its step and the steps that are done, as a link writes them."""
    step = st.session_state.get(TOUR_STEP, 1)
    tour, done = (st.session_state.get(key, "") for key in (TOUR, TOUR_DONE))
    return {TOUR: tour, TOUR_STEP: "" if step == 1 else str(step), TOUR_DONE: done}


def link_to(
    name: str, query: Mapping[str, str], label: str, *, width: Literal["stretch", "content"] = "stretch"
) -> None:
    """Show a link to another view, which makes one entry in the browser's history.

    The link has the run and the preset of `query`, or else the ones shown now. If `query` names a preset, the preset
    keeps its own values, except for those that `query` names, too.
    """
    st.page_link(pages()[name], label=label, query_params=linked(query), width=width)


def linked(query: Mapping[str, str]) -> dict[str, str]:
    """Return the whole query of such a link."""
    run_and_step = {} if "run" in query else session.run_and_step()
    preset = {} if "preset" in query else preset_and_fields()
    kept = {"hide": st.session_state.get("hide", ""), "projector": "1" if st.session_state.get("projector") else ""}
    kept |= {} if TOUR in query else tour_and_step()
    return {**run_and_step, **preset, **{key: value for key, value in kept.items() if value}, **query}
