"""The fields of a configuration, its choices and its bounds.

A field is in the URL, under its key, only where it differs from the preset's own value. It is written when a control is
let go, not while it is dragged, and read again whenever the URL says something that this module did not write: on the
first visit, and after the browser's Back button.
"""

from dataclasses import dataclass

import streamlit as st

from rlcorr.bounds import Side
from state import address, notices

BOUNDS, CHOICES = "bounds_generation", "choices_generation"
FIRST, SECOND = "", "b."
"""Prefixes of URL keys: fields of the configuration that all views share, and of the one it is compared with."""


@dataclass(frozen=True)
class Bound:
    """One threshold of a configuration: its URL key, what it bounds, its range, and the preset's number.

    Values are `offset` ± an excess that is easiest to set on a logarithmic scale.
    """

    key: str
    rule: int | None
    """Index of the rule that it belongs to; None for the weights."""
    side: Side
    label: str
    value: float
    low: float
    high: float
    offset: float
    help: str


@dataclass(frozen=True)
class Choice:
    """One setting of a configuration that is picked from a list: its URL key and the preset's value. Several values are
    separated by commas."""

    key: str
    label: str
    value: str
    options: tuple[str, ...]
    help: str
    several: bool = False


Field = Bound | Choice


def generation(of: str = BOUNDS) -> int:
    """A count that grows whenever the controls of the bounds, or of the choices, must take a new value from here."""
    return st.session_state.setdefault(of, 0)


def bound(b: Bound) -> float:
    return float(_set().get(b.key, b.value))


def choice(c: Choice) -> str:
    return str(_set().get(c.key, c.value))


def put(field: Field, value: float | str, *, done: bool = True) -> None:
    """Remember the value; write the URL once it is final."""
    if value == field.value:
        _set().pop(field.key, None)
    else:
        _set()[field.key] = value
    if done:
        _write_url(side_of(field.key))


def picked(field: Field, value: float | str) -> None:
    """What a control shows. Only a new value is put: else the URL would be written while somebody drags a bound."""
    if value != _set().get(field.key, field.value):
        put(field, value)


def reset(side: str = FIRST) -> None:
    """Back to the preset's own values."""
    for key in _of_side(side):
        del _set()[key]
    st.session_state.pop(f"{side}fields_notice", None)
    _renew_controls(side)
    _write_url(side)


def swap() -> None:
    """What was set of the first configuration is now set of the second, and the other way round."""
    moved = {SECOND + key: value for key, value in _of_side(FIRST).items()}
    moved |= {key.removeprefix(SECOND): value for key, value in _of_side(SECOND).items()}
    st.session_state["fields"] = moved
    for side in (FIRST, SECOND):
        st.session_state.pop(f"{side}fields_notice", None)
        _renew_controls(side)
    _write_url(FIRST, SECOND)


def show_second(shown: bool) -> None:
    """The second configuration is in the URL only where it has controls."""
    if shown and not st.session_state.get("second"):
        st.session_state[f"{SECOND}came_back"] = True
    if not shown:
        address.write({key: None for key in st.query_params if side_of(key) == SECOND})
    st.session_state["second"] = shown


def show_bounds(bounds: list[Bound], side: str = FIRST) -> None:
    st.session_state[f"{side}shown_bounds"] = bounds


def shown_bounds(side: str = FIRST) -> list[Bound]:
    """The bounds that have controls, with the preset's values."""
    return st.session_state.get(f"{side}shown_bounds", [])


def are_set() -> None:
    """Something else than their controls has set bounds: the controls take them, and the URL."""
    st.session_state[BOUNDS] = generation() + 1
    _write_url(FIRST)


def is_changed(side: str = FIRST) -> bool:
    return bool(_of_side(side))


def is_shown(side: str) -> bool:
    """The second has controls only where two configurations are compared."""
    return side == FIRST or bool(st.session_state.get("second"))


def side_of(key: str) -> str:
    return SECOND if key.startswith(SECOND) else FIRST


def sync_choices(choices: list[Choice], side: str = FIRST) -> None:
    """Take over choices from the URL, unless the URL is what was written last."""
    if (
        st.session_state.pop(f"{side}came_back", False)
        and _of_side(side)
        and not set(_of_side(side)) & set(st.query_params)
    ):
        _write_url(side)
        return
    _sync(list(choices), CHOICES, side)


def sync_bounds(bounds: list[Bound], choices: list[Choice], side: str = FIRST) -> None:
    """The same for bounds, which depend on the choices; bounds that no longer exist are forgotten."""
    _sync(list(bounds), BOUNDS, side)
    keys = {field.key for field in (*bounds, *choices)}
    gone = set(_of_side(side)) - keys
    for key in gone:
        del _set()[key]
    if gone:
        _write_url(side)


def _sync(fields: list[Field], of: str, side: str) -> None:
    keys = {field.key for field in fields}
    raw = {key: text for key in keys if (text := address.read(key)) is not None}
    if raw == {key: text for key, text in in_url().items() if key in keys}:
        return
    wrong = []
    for field in fields:
        _set().pop(field.key, None)
        if field.key in raw:
            wrong += _take(field, raw[field.key])
    st.session_state[side + of] = generation(side + of) + 1
    if wrong:
        notices.put(f"{side}fields", " ".join(wrong))
    _write_url(side)


def _take(field: Field, raw: str) -> list[str]:
    """Put what the URL says, or say what is wrong with it."""
    if isinstance(field, Choice):
        wrong = [part for part in (raw.split(",") if field.several else [raw]) if part not in field.options]
        if not wrong or (field.several and raw == ""):
            put(field, raw, done=False)
            return []
        return [f"{field.key}={raw!r} is not known; using {field.value!r}. Known: {', '.join(field.options)}."]
    allowed = f"{field.low:g} to {field.high:g}"
    try:
        value = float(raw)
    except ValueError:
        return [f"{field.key}={raw!r} is not a number; using {field.value:g}. Allowed: {allowed}."]
    if not field.low <= value <= field.high:
        return [f"{field.key}={raw} is out of range; using {field.value:g}. Allowed: {allowed}."]
    put(field, value, done=False)
    return []


def _set() -> dict[str, float | str]:
    return st.session_state.setdefault("fields", {})


def _of_side(side: str) -> dict[str, float | str]:
    return {key: value for key, value in _set().items() if side_of(key) == side}


def _renew_controls(side: str) -> None:
    """Let every control of this side take its value anew."""
    for of in (side + BOUNDS, side + CHOICES):
        st.session_state[of] = generation(of) + 1


def in_url() -> dict[str, str]:
    """URL key → text, as it was written last."""
    return st.session_state.setdefault("fields_in_url", {})


def _write_url(*sides: str) -> None:
    """Make the URL agree with the fields of these sides that differ from the preset's. The other side is left alone: it
    may be dragged at this moment, or have a new value in the URL that is not read yet."""
    shown = [side for side in sides if is_shown(side)]
    mine = {key: value for side in shown for key, value in _of_side(side).items()}
    wanted = {key: value if isinstance(value, str) else f"{value:.12g}" for key, value in mine.items()}
    written = {key: text for key, text in in_url().items() if side_of(key) in sides}
    address.write({key: wanted.get(key) for key in {*written, *wanted}})
    others = {key: text for key, text in in_url().items() if key not in written}
    st.session_state["fields_in_url"] = others | wanted
