"""To which system a configuration goes: in the URL as `system`, and in the list the last choice first."""

import streamlit as st
from state import notices, session
from text import phrases

from rlcorr import CorrectionConfig
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import SYSTEMS, beyond_defaults, refused

KEY = "system"


def system() -> str:
    """The name of the chosen one; what is wrong in the URL is said by `notices.sentences(KEY)`."""
    session.restore(KEY)
    notices.check_url(KEY, SYSTEMS, lambda raw: phrases.WRONG_SYSTEM.format(raw=raw, allowed=", ".join(SYSTEMS)))
    last: str = st.session_state.get(f"last_{KEY}", next(iter(SYSTEMS)))
    names = [last, *(name for name in SYSTEMS if name != last)]
    picked = str(st.selectbox(phrases.SYSTEM, names, key=KEY, bind="query-params", on_change=_chosen))
    st.session_state[f"last_{KEY}"] = picked
    return picked


def text_for(system: str, config: CorrectionConfig, loss: LossConfig | None) -> None:
    """The text to copy, and which of its lines are not the system's own defaults anyway."""
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


def _chosen() -> None:
    notices.clear(KEY)
    st.session_state[f"last_{KEY}"] = st.session_state[KEY]
