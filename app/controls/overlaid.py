"""The other runs drawn in the same axes as the shown one: in the URL as with=slug,slug, and kept from view to view."""

from collections.abc import Iterable

import streamlit as st
from data.names import run_labels
from state import address, notices
from text import training as say
from text.formatting import plain

from rlcorr.errors import unknown
from rlcorr.figures.training import MOST_RUNS

KEY, WIDGET = "with", "with_runs"


def pick(slugs: Iterable[str], shown: str) -> list[str]:
    """Show the picker and return the runs. Wrong names in the URL are left out and named."""
    others = [slug for slug in slugs if slug != shown]
    if address.takes(KEY):
        _take(others, shown, address.text(KEY))
    _say()
    st.session_state[WIDGET] = [slug for slug in _picked() if slug in others]
    st.multiselect(
        say.COMPARE, others, key=WIDGET, format_func=run_labels(others).__getitem__, on_change=_changed,
        help=say.COMPARE_HELP, max_selections=MOST_RUNS - 1,
    )  # fmt: skip
    if f"{KEY}_notice" in st.session_state:
        st.warning(plain(st.session_state[f"{KEY}_notice"]))
    return st.session_state[WIDGET]


def _picked() -> list[str]:
    return st.session_state.get(KEY, [])


def _changed() -> None:
    st.session_state[KEY] = list(st.session_state[WIDGET])
    notices.clear(KEY)
    _say()


def _say() -> None:
    address.write({KEY: ",".join(_picked()) or None})


def _take(others: list[str], shown: str, raw: str | None) -> None:
    """Take over the runs that the address names, and note the names that are wrong."""
    notices.clear(KEY)
    named = list(dict.fromkeys((raw or "").split(",") if raw else []))
    right = [slug for slug in named if slug in others]
    wrong = [slug for slug in named if slug not in others and slug != shown]
    st.session_state[KEY] = right[: MOST_RUNS - 1]
    sentences = [f"{unknown('run', slug, others)} Drawn without it." for slug in wrong]
    if len(right) > MOST_RUNS - 1:
        sentences.append(say.TOO_MANY.format(most=MOST_RUNS))
    if sentences:
        notices.put(KEY, " ".join(sentences))
