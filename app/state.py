"""What the pages remember. `run`, `step` and `preset` are widgets bound to the URL; bounds are kept here.

A bound is in the URL, under the key below, only where it differs from the preset's own number. It is written when a
control is let go, not while it is dragged, and read again whenever the URL says something that this module did not
write: on the first visit, and after the browser's Back button.
"""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

NEWEST, LATEST, DEFAULT_PRESET = "newest", "latest", "decoupled_token_is"


@dataclass(frozen=True)
class Bound:
    """One threshold of a configuration: its URL key, its range, and the preset's number.

    Values are `offset` ± an excess that is easiest to set on a logarithmic scale.
    """

    key: str
    label: str
    value: float
    low: float
    high: float
    offset: float
    help: str


@dataclass(frozen=True)
class Selection:
    """What the pickers say: a run, and its step if it has a readable one."""

    slug: str
    run: Path
    steps: tuple[int, ...]
    step: int | None


def select(selection: Selection) -> None:
    st.session_state["selection"] = selection


def selection() -> Selection:
    return st.session_state["selection"]


def changed(key: str) -> None:
    """A person picked something else: what was said about the old value is over."""
    st.session_state.pop(f"{key}_notice", None)


def notice(key: str, sentence: str) -> None:
    st.session_state[f"{key}_notice"] = sentence


def notices() -> list[str]:
    keys = ("run_notice", "step_notice", "preset_notice", "bounds_notice")
    return [st.session_state[key] for key in keys if key in st.session_state]


# --- bounds ---


def token() -> int:
    """Changes whenever the controls of the bounds must take a new value from here."""
    return st.session_state.setdefault("token", 0)


def bound(b: Bound) -> float:
    return _set().get(b.key, b.value)


def set_bound(b: Bound, value: float, *, done: bool = True) -> None:
    """Remember the value; write the URL once it is final."""
    if value == b.value:
        _set().pop(b.key, None)
    else:
        _set()[b.key] = value
    if done:
        _write_url()


def reset_bounds() -> None:
    """Back to the preset's own numbers."""
    st.session_state["bounds"] = {}
    st.session_state.pop("bounds_notice", None)
    st.session_state["token"] = token() + 1
    _write_url()


def is_changed() -> bool:
    return bool(_set())


def enter(view: str) -> None:
    """Note that another view is shown; changing the view empties the URL of what is not a widget."""
    if st.session_state.get("view") != view:
        st.session_state["view"] = view
        st.session_state["came_back"] = True


def sync_bounds(bounds: list[Bound]) -> None:
    """Take over bounds from the URL, unless the URL is what was written last."""
    came_back = st.session_state.pop("came_back", False)
    raw = {b.key: st.query_params[b.key] for b in bounds if b.key in st.query_params}
    if came_back and not raw and _set():
        _write_url()
        return
    if raw == _written():
        return
    st.session_state["bounds"], wrong = {}, []
    for b in bounds:
        if b.key in raw:
            wrong += _take(b, raw[b.key])
    st.session_state["token"] = token() + 1
    if wrong:
        notice("bounds", " ".join(wrong))
    _write_url()


def _take(b: Bound, raw: str) -> list[str]:
    allowed = f"{b.low:g} to {b.high:g}"
    try:
        value = float(raw)
    except ValueError:
        return [f"{b.key}={raw!r} is not a number; using {b.value:g}. Allowed: {allowed}."]
    if not b.low <= value <= b.high:
        return [f"{b.key}={raw} is out of range; using {b.value:g}. Allowed: {allowed}."]
    set_bound(b, value, done=False)
    return []


def _set() -> dict[str, float]:
    return st.session_state.setdefault("bounds", {})


def _written() -> dict[str, str]:
    return st.session_state.setdefault("bounds_in_url", {})


def _write_url() -> None:
    """Make the URL agree with the bounds that differ from the preset's."""
    wanted = {key: f"{value:.12g}" for key, value in _set().items()}
    current = st.query_params.to_dict()
    for key in {*_written(), *wanted}:
        if key in current and key not in wanted:
            del st.query_params[key]
    fresh = {key: text for key, text in wanted.items() if current.get(key) != text}
    if fresh:
        st.query_params.update(fresh)
    st.session_state["bounds_in_url"] = wanted
