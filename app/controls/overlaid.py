"""Which other runs lie over the shown one: in the URL as with=slug,slug, and kept from view to view."""

from collections.abc import Iterable

import streamlit as st
from state import address, notices
from text import training as say
from text.formatting import plain

from rlcorr.errors import unknown
from rlcorr.figures.training import MOST_RUNS

WIDGET = "with_runs"


def pick(slugs: Iterable[str], shown: str) -> list[str]:
    """The picker; what is wrong in the URL is left out and named."""
    others = [slug for slug in slugs if slug != shown]
    _sync(others, shown)
    st.session_state[WIDGET] = [slug for slug in _chosen() if slug in others]
    st.multiselect(
        say.COMPARE, others, key=WIDGET, on_change=_changed, help=say.COMPARE_HELP, max_selections=MOST_RUNS - 1
    )
    if "with_notice" in st.session_state:
        st.warning(plain(st.session_state["with_notice"]))
    return st.session_state[WIDGET]


def _chosen() -> list[str]:
    return st.session_state.get("with", [])


def _changed() -> None:
    st.session_state["with"] = list(st.session_state[WIDGET])
    notices.clear("with")
    _write()


def _write() -> None:
    wanted = ",".join(_chosen()) or None
    address.write({"with": wanted})
    st.session_state["with_in_url"] = wanted


def _sync(others: list[str], shown: str) -> None:
    """Take over the URL, unless it is what was seen last, or was emptied on the way to another view and back."""
    came_back = st.session_state.pop("with_came_back", False)
    raw = address.read("with")
    if raw == st.session_state.get("with_in_url"):
        return
    if raw is None and came_back:
        _write()
        return
    notices.clear("with")
    st.session_state["with_in_url"] = raw
    named = list(dict.fromkeys((raw or "").split(",") if raw else []))
    right = [slug for slug in named if slug in others]
    wrong = [slug for slug in named if slug not in others and slug != shown]
    st.session_state["with"] = right[: MOST_RUNS - 1]
    sentences = [f"{unknown('run', slug, others)} Drawn without it." for slug in wrong]
    if len(right) > MOST_RUNS - 1:
        sentences.append(say.TOO_MANY.format(most=MOST_RUNS))
    if sentences:
        notices.put("with", " ".join(sentences))
