"""To which system a configuration goes: in the URL as `system`, and in the list the last choice first."""

import streamlit as st
from remembered import notices, session
from words import words

from rlcorr.systems.export import SYSTEMS

KEY = "system"


def system() -> str:
    """The name of the chosen one; what is wrong in the URL is said by `notices.sentences(KEY)`."""
    session.restore(KEY)
    notices.check_url(KEY, SYSTEMS, lambda raw: words.WRONG_SYSTEM.format(raw=raw, allowed=", ".join(SYSTEMS)))
    last: str = st.session_state.get(f"last_{KEY}", next(iter(SYSTEMS)))
    names = [last, *(name for name in SYSTEMS if name != last)]
    picked = str(st.selectbox(words.SYSTEM, names, key=KEY, bind="query-params", on_change=_chosen))
    st.session_state[f"last_{KEY}"] = picked
    return picked


def _chosen() -> None:
    notices.clear(KEY)
    st.session_state[f"last_{KEY}"] = st.session_state[KEY]
