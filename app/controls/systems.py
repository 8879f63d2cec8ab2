"""The system that a configuration is exported to, and the text for it."""

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import state
import streamlit as st
from text import phrases

from controls.choosing import pick
from rlcorr import CorrectionConfig
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import SYSTEMS, beyond_defaults, refused
from rlcorr.systems.overrides import overrides

NOT_IN_LINK = ("hide", "projector")
"""Keys of a link that are about how a page looks."""


def system() -> str:
    """Show the picker, which begins with the last choice, and return the name of the system."""
    last = state.get("system")
    return str(pick("system", phrases.SYSTEM, [last, *(name for name in SYSTEMS if name != last)]))


def text_for(system: str, config: CorrectionConfig, loss: LossConfig | None, link: Mapping[str, str]) -> None:
    """Show the text to copy, its overrides for a command line, and which lines differ from the system's own defaults.

    Args:
        system: The system.
        config: The correction.
        loss: The loss, if the preset names one.
        link: What a link to a page changes so that it shows this configuration again.
    """
    try:
        text, lines = beyond_defaults(config, system, loss)
    except UsageError as error:
        st.code(refused(error), language=None, wrap_lines=True)
        return
    comment = phrases.EXPORT_LINK.format(address=_address(link))
    st.code(f"{text.rstrip()}\n{comment}\n", language=None, wrap_lines=True)  # the colours of a language are too pale
    if system != "Python":
        changed = "; ".join(f"`{line}`" for line in lines if not line.startswith("#"))
        st.caption(
            phrases.BEYOND_DEFAULTS.format(system=system, lines=changed)
            if changed
            else phrases.DEFAULTS.format(system=system)
        )
    if line := overrides(config, system, loss):
        st.caption(phrases.COMMAND_LINE)
        st.code(line, language=None, wrap_lines=True)


def _address(link: Mapping[str, str]) -> str:
    """Return the address of a link on this server; without the server's name if it is not known."""
    parts = urlsplit(st.context.url or "")
    server = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    query = {key: text for key, text in state.query_of(link).items() if key not in NOT_IN_LINK}
    return f"{server}/?{urlencode(query)}"
