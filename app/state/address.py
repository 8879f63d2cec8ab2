"""Read and write values in the URL, which a page writes and the browser's buttons change, too.

Every request of the browser brings the URL of the moment at which it was sent. A timer's request may be on its way
while a page writes the URL, and then brings a value that has been replaced. Such a value looks like a press of Back,
which brings old values as well. If it were taken for one, a bound that somebody has just let go would jump back.
"""

from collections.abc import Callable, Collection, Mapping

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

REMEMBERED = 8
"""Replaced values to remember per key. Fewer requests than this are on their way at once."""
RETURNING = ("fields", "token", "with", "answers")
"""Groups of values that come back after a change of view, which empties the URL."""


def read(key: str) -> str | None:
    """Return the URL's value, or the last one written if the request brings a value that this one replaced."""
    raw, written = st.query_params.get(key), _written()
    if key not in written or raw == written[key]:
        return raw
    if raw in _replaced().get(key, []) and not _is_history():
        return written[key]
    del written[key], _replaced()[key]
    return raw


def write(texts: Mapping[str, str | None], group: str | None = None) -> None:
    """Put these texts into the URL with one message; None removes a key. `group`: also note them there for `sync`."""
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
    if group is not None:
        note(group, texts)


def sync(
    group: str,
    keys: Collection[str],
    take: Callable[[dict[str, str]], None],
    restore: Callable[[], None] | None = None,
) -> bool:
    """Call `take` with the URL's values of these keys, unless they are the ones noted last.

    `restore`, if given, is called instead when the URL has none of the keys. It is for the first run after a change of
    view, which empties the URL, and should write the values again.

    Returns:
        Whether one of the two was called.
    """
    current = {key: text for key in keys if (text := read(key)) is not None}
    if current == {key: text for key, text in in_url(group).items() if key in keys}:
        return False
    if restore is not None and not current:
        restore()
        return True
    take(current)
    return True


def in_url(group: str) -> dict[str, str]:
    """Return key → text of a group, as it was noted last, also before a change of view."""
    return st.session_state.setdefault(f"{group}_in_url", {})


def note(group: str, texts: Mapping[str, str | None]) -> None:
    """Note what the URL has of a group now, so that `sync` calls nobody for it; None forgets a key."""
    noted = {key: text for key, text in in_url(group).items() if key not in texts}
    st.session_state[f"{group}_in_url"] = noted | {key: text for key, text in texts.items() if text is not None}


def forget() -> None:
    """Forget what was written before a change of view, which empties the URL, and let every group come back."""
    _written().clear()
    _replaced().clear()
    for group in RETURNING:
        set_returning(group)


def set_returning(group: str, returning: bool = True) -> None:
    st.session_state[f"{group}_returning"] = returning


def take_returning(group: str) -> bool:
    """Return, once, whether the values of a group should come back to the URL."""
    return st.session_state.pop(f"{group}_returning", False)


def _written() -> dict[str, str | None]:
    return st.session_state.setdefault("address_written", {})


def _replaced() -> dict[str, list[str | None]]:
    return st.session_state.setdefault("address_replaced", {})


def _is_history() -> bool:
    """Return whether the browser's Back or Forward caused this run."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation
