"""The system that a configuration is exported to: in the URL as `system`; the list begins with the last choice."""

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import streamlit as st
from state import address, navigation, notices
from text import export as say
from text import phrases

from rlcorr import CorrectionConfig
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import SYSTEMS, beyond_defaults, refused
from rlcorr.systems.overrides import overrides

KEY = "system"
NOT_IN_LINK = ("hide", "projector")
"""Keys of a link that are about how a page looks."""


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


def text_for(
    system: str, config: CorrectionConfig, loss: LossConfig | None, link: tuple[str, Mapping[str, str]] | None = None
) -> None:
    """Show the text to copy, its overrides for a command line, and which lines differ from the system's own defaults.

    Args:
        system: The system.
        config: The correction.
        loss: The loss, if the preset names one.
        link: The page and the query that show this configuration again; by default those of the present address.
    """
    try:
        text, lines = beyond_defaults(config, system, loss)
    except UsageError as error:
        st.code(refused(error), language=None, wrap_lines=True)
        return
    comment = say.LINK.format(address=_address(*(link or _present())))
    st.code(f"{text.rstrip()}\n{comment}\n", language=None, wrap_lines=True)  # the colours of a language are too pale
    if system != "Python":
        changed = "; ".join(f"`{line}`" for line in lines if not line.startswith("#"))
        st.caption(
            phrases.BEYOND_DEFAULTS.format(system=system, lines=changed)
            if changed
            else phrases.DEFAULTS.format(system=system)
        )
    if line := overrides(config, system, loss):
        st.caption(say.COMMAND_LINE)
        st.code(line, language=None, wrap_lines=True)


def _present() -> tuple[str, dict[str, str]]:
    """Return the page that is shown, and a query that shows its run, its step and its configuration again."""
    query = navigation.linked({})
    return st.session_state["view"], {key: value for key, value in query.items() if key not in NOT_IN_LINK}


def _address(view: str, query: Mapping[str, str]) -> str:
    """Return the address of a view on this server; without the server's name if it is not known."""
    parts = urlsplit(st.context.url or "")
    server = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    return f"{server}/{view}?{urlencode(query)}"


def _remember() -> None:
    notices.clear(KEY)
    st.session_state[f"last_{KEY}"] = st.session_state[KEY]
