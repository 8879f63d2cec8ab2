"""What is wrong with the URL: sentences that a page shows until a person picks something else."""

from collections.abc import Callable, Collection

import streamlit as st


def clear(key: str) -> None:
    """Forget the sentence about an old value, because a person picked something else."""
    st.session_state.pop(f"{key}_notice", None)


def put(key: str, sentence: str) -> None:
    st.session_state[f"{key}_notice"] = sentence


def sentences(*more: str) -> list[str]:
    """Return the sentences about the pickers that all views have, and about the keys in `more`."""
    keys = [f"{key}_notice" for key in ("run", "step", "preset", "fields", *more)]
    return [st.session_state[key] for key in keys if key in st.session_state]


def check_url(key: str, options: Collection[str], sentence: Callable[[str], str]) -> None:
    """Note a value in the URL that does not exist, before its widget silently falls back to the default."""
    raw = st.query_params.get(key)
    if raw is not None and raw not in options:
        put(key, sentence(raw))
