"""The system that a configuration is exported to: in the URL as `system`; the list begins with the last choice."""

import streamlit as st
from state import address, notices
from text import phrases

from rlcorr import CorrectionConfig
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import SYSTEMS, beyond_defaults, refused

KEY = "system"


def system() -> str:
    """Show the picker and return the name of the system. `notices.sentences(KEY)` names a wrong value in the URL."""
    allowed = ", ".join(SYSTEMS)
    first = next(iter(SYSTEMS))
    named = address.one_of(SYSTEMS, lambda raw: phrases.WRONG_SYSTEM.format(raw=raw, allowed=allowed))
    last: str = st.session_state.get(f"last_{KEY}", first)
    address.restore(KEY, first, named)
    names = [last, *(name for name in SYSTEMS if name != last)]
    picked = str(st.selectbox(phrases.SYSTEM, names, key=KEY, on_change=_remember))
    address.say(KEY, picked, first)
    return picked


def text_for(system: str, config: CorrectionConfig, loss: LossConfig | None) -> None:
    """Show the text to copy, and which of its lines differ from the system's own defaults."""
    lines: list[str] | None = None
    try:
        text, lines = beyond_defaults(config, system, loss)
    except UsageError as error:
        text = refused(error)
    st.code(text, language=None, wrap_lines=True)  # the colours of a language are too pale to read
    if lines is not None and system != "Python":
        changed = "; ".join(f"`{line}`" for line in lines if not line.startswith("#"))
        st.caption(
            phrases.BEYOND_DEFAULTS.format(system=system, lines=changed)
            if changed
            else phrases.DEFAULTS.format(system=system)
        )


def _remember() -> None:
    notices.clear(KEY)
    st.session_state[f"last_{KEY}"] = st.session_state[KEY]
