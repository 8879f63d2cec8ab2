"""Read and write values in the URL, which a page writes and the browser's buttons change, too.

Every request of the browser brings the URL of the moment at which it was sent. A timer's request may be on its way
while a page writes the URL, and then brings a value that has been replaced. It must not be taken for a press of Back,
which brings old values as well: else a bound that somebody has just let go returns to where it was.
"""

from collections.abc import Mapping

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

REMEMBERED = 8
"""Replaced values of a key that are remembered: more writes than requests are on their way at once."""


def read(key: str) -> str | None:
    """Return what the URL says, or what was written last if the request brings a value that this replaced."""
    raw, written = st.query_params.get(key), _written()
    if key not in written or raw == written[key]:
        return raw
    if raw in _replaced().get(key, []) and not _is_history():
        return written[key]
    del written[key], _replaced()[key]
    return raw


def write(texts: Mapping[str, str | None]) -> None:
    """Make the URL say these texts, with one message for all of them; None leaves a key out."""
    before = {key: st.query_params.get(key) for key in texts}
    for key, text in texts.items():
        if before[key] != text:
            replaced = _replaced().setdefault(key, [])
            replaced[:] = [*replaced, before[key]][-REMEMBERED:]
            _written()[key] = text
    for key in [key for key, text in texts.items() if text is None and before[key] is not None]:
        del st.query_params[key]
    fresh = {key: text for key, text in texts.items() if text is not None and text != before[key]}
    if fresh:
        st.query_params.update(fresh)


def forget() -> None:
    """Take the URL as it is, after it was emptied on the way to another view."""
    _written().clear()
    _replaced().clear()


def _written() -> dict[str, str | None]:
    return st.session_state.setdefault("address_written", {})


def _replaced() -> dict[str, list[str | None]]:
    return st.session_state.setdefault("address_replaced", {})


def _is_history() -> bool:
    """Return whether the browser's Back or Forward caused this run."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation
