"""What is wrong with the URL: sentences that a page shows until a person picks something else."""

import streamlit as st


def clear(key: str) -> None:
    """Forget the sentence about an old value, because a person picked something else."""
    st.session_state.pop(f"{key}_notice", None)


def put(key: str, sentence: str) -> None:
    st.session_state[f"{key}_notice"] = sentence


def of(key: str) -> list[str]:
    """Return the sentence about this key, if there is one."""
    return [st.session_state[f"{key}_notice"]] if f"{key}_notice" in st.session_state else []


def sentences(*more: str) -> list[str]:
    """Return the sentences about the pickers that all views have, and about the keys in `more`."""
    keys = [f"{key}_notice" for key in ("run", "step", "preset", "fields", *more)]
    return [st.session_state[key] for key in keys if key in st.session_state]
