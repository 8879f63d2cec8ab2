"""The address (URL): when the page takes values from it, and when it writes them there.

The page takes the values of the address once after each arrival: when the session begins, and when a link, Back or
Forward has changed the address. Every other request of the browser brings the address of the moment at which it was
sent, which may be older than what the page has written since, so it is not looked at.

An address that names a run is complete: a key that it lacks has its default. The navigation's own links name nothing;
they keep everything as it is, and the page then completes the address. The server does so with the one that opens the
app (controls/complete_address.py). Back and Forward then lead to complete addresses, even where Streamlit forgets that
a request comes from them.

Each control calls `restore` before it is drawn and `say` afterwards. What they say is written in one message when the
run of the page ends, so that each choice is one entry in the browser's history.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from rlcorr.errors import UsageError
from state import notices, session

T = TypeVar("T")
P = ParamSpec("P")
RUN = "run"
REMEMBERED = 8
"""Addresses to remember. Fewer requests than this are on their way at once."""


@dataclass(frozen=True)
class Arrival:
    """The address that a page has arrived at."""

    number: int
    texts: Mapping[str, str]
    is_complete: bool


def begin(view: str) -> bool:
    """Read the address when a run of the whole page begins. Return whether another view is shown than before."""
    texts = {key: ",".join(st.query_params.get_all(key)) for key in st.query_params}
    last, another = st.session_state.get("arrival"), st.session_state.get("view") != view
    if last is None or another or _is_history() or texts not in _recent():
        number = 0 if last is None else last.number + 1
        st.session_state["arrival"] = Arrival(number, texts, RUN in texts or _is_history())
        st.session_state["written"] = texts
    _remember(texts)
    st.session_state["view"], st.session_state["says"], st.session_state["rerun_when"] = view, {}, None
    return another


def takes(key: str) -> bool:
    """Return True once after each arrival at an address that decides the value of this key: take `text(key)` then."""
    return _arrived(key) and not _keeps(key)


def number() -> int:
    """Return how often the page has arrived at an address: what a control shows may be new after each time."""
    return _arrival().number


def text(key: str) -> str | None:
    """Return what the address that the page has arrived at has for this key."""
    return _arrival().texts.get(key)


def peek(key: str, default: T, parse: Callable[[str], T]) -> T:
    """Return the value that `restore` has given or will give to the widget. Wrong values count as the default."""
    if st.session_state.get("taken", {}).get(key) == _arrival().number:
        return st.session_state.get(key, default)
    if _keeps(key):
        return st.session_state.get(f"last_{key}", default)
    raw = text(key)
    try:
        return default if raw is None else parse(raw)
    except UsageError:
        return default


def restore(key: str, default: T, parse: Callable[[str], T]) -> None:
    """Give the widget of this key its value before it is drawn: that of the address, or the one of the last view.

    A text that `parse` refuses with a `UsageError` counts as the default; the error's sentence becomes the notice.
    """
    if _arrived(key):
        notices.clear(key)
        value = default
        try:
            raw = text(key)
            value = default if raw is None else parse(raw)
        except UsageError as error:
            notices.put(key, str(error))
        st.session_state[key] = st.session_state.get(f"last_{key}", default) if _keeps(key) else value
    elif key not in st.session_state or _returns(key):
        st.session_state[key] = st.session_state.get(f"last_{key}", default)


def leave(*keys: str) -> None:
    """Do not take these keys from the address that the page has arrived at: code has given them other values."""
    for key in keys:
        if _arrived(key):
            notices.clear(key)
            st.session_state["settled"] = _arrival().number


def one_of(options: Collection[str], sentence: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function for `restore` that accepts one of the options."""

    def parse(raw: str) -> str:
        if raw not in options:
            raise UsageError(sentence(raw))
        return raw

    return parse


def say(key: str, value: T, default: T | None, as_text: Callable[[T], str] = str) -> None:
    """Remember the widget's value for the next view, and put it into the address unless it is the default."""
    st.session_state[f"last_{key}"] = value
    write({key: None if value == default else as_text(value)})


def differs(key: str) -> bool:
    """Return whether the widget's value differs from the one that it said last.

    Streamlit also calls `on_change` of a widget that is shown again before the browser has forgotten it.
    """
    return st.session_state.get(key) != st.session_state.get(f"last_{key}")


def write(texts: Mapping[str, str | None]) -> None:
    """Put these texts into the address when this run of the page or fragment ends; None removes a key."""
    st.session_state.setdefault("says", {}).update(texts)


def said() -> Mapping[str, str]:
    """Return what the controls say: the address that the page has or is about to have."""
    return {key: value for key, value in st.session_state["says"].items() if value is not None}


def rerun_when(is_met: Callable[[Mapping[str, str]], bool]) -> None:
    """Run the whole page once a fragment has run alone and what the controls say meets this condition."""
    st.session_state["rerun_when"] = is_met


def flush() -> None:
    """Write the address, if the controls say something else than after the last time.

    After an arrival at a complete address it stays as it is.
    """
    says, arrival = said(), _arrival()
    st.session_state["drawn"] = set(st.session_state["says"])
    is_settled = st.session_state.get("settled") == arrival.number
    st.session_state["settled"] = arrival.number
    if (is_settled or not arrival.is_complete) and says != st.session_state["written"]:
        st.query_params.from_dict(says)
        _remember(says)
    st.session_state["written"] = says


def fragment(show: Callable[P, None]) -> Callable[P, None]:
    """Make a fragment of the page that also writes the address when it runs alone."""

    @st.fragment
    @wraps(show)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        show(*args, **kwargs)
        if session.runs_alone():
            flush()
            is_met = st.session_state.get("rerun_when")
            if is_met is not None and is_met(said()):
                st.rerun()

    return run


def _arrived(key: str) -> bool:
    """Return True once after each arrival."""
    taken, number = st.session_state.setdefault("taken", {}), _arrival().number
    is_new = taken.get(key) != number
    taken[key] = number
    return is_new


def _returns(key: str) -> bool:
    """Check whether the last complete page lacked this widget, and nobody has used it since.

    Its value may still be there if the page changed quickly. The browser has forgotten it, and must get it again.
    """
    return key not in st.session_state.get("drawn", ()) and not differs(key)


def _keeps(key: str) -> bool:
    """Check whether the address leaves this key as it was on the view before."""
    return text(key) is None and not _arrival().is_complete


def _arrival() -> Arrival:
    return st.session_state["arrival"]


def _recent() -> list[Mapping[str, str]]:
    return st.session_state.setdefault("recent_addresses", [])


def _remember(texts: Mapping[str, str]) -> None:
    st.session_state["recent_addresses"] = [*_recent(), texts][-REMEMBERED:]


def _is_history() -> bool:
    """Return whether the browser's Back or Forward caused this run."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation
