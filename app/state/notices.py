"""What is wrong with the URL, said until a person picks something else."""

from collections.abc import Callable, Collection

import streamlit as st


def clear(key: str) -> None:
    """A person picked something else: what was said about the old value is over."""
    st.session_state.pop(f"{key}_notice", None)


def put(key: str, sentence: str) -> None:
    st.session_state[f"{key}_notice"] = sentence


def sentences(*more: str) -> list[str]:
    """What is wrong with the URL, about the pickers that all views have and about `more` of them."""
    keys = [f"{key}_notice" for key in ("run", "step", "preset", "fields", *more)]
    return [st.session_state[key] for key in keys if key in st.session_state]


def check_url(key: str, options: Collection[str], sentence: Callable[[str], str]) -> None:
    """Note a value in the URL that does not exist, before its widget quietly falls back to the default."""
    raw = st.query_params.get(key)
    if raw is not None and raw not in options:
        put(key, sentence(raw))
