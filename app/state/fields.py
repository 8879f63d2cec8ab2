"""The fields of a configuration: its choices and its bounds.

A field is in the URL, under its key, only if it differs from the preset's own value. It is written when a control is
let go, not while it is dragged. It is read again when the URL has a value that this module did not write: on the first
visit, and after the browser's Back button.
"""

from dataclasses import dataclass

import streamlit as st

from rlcorr.bounds import BoundId
from state import address, notices

BOUNDS, CHOICES = "bounds_generation", "choices_generation"
FIRST, SECOND = "", "b."
"""The slots, as prefixes of URL keys: the configuration that all views share (A), and B, which it is compared with."""


@dataclass(frozen=True)
class Bound:
    """One bound of a configuration: its URL key, what it bounds, its range, and the preset's number.

    Values are `offset` ± an excess that is easiest to set on a logarithmic scale.
    """

    key: str
    id: BoundId
    label: str
    value: float
    low: float
    high: float
    offset: float
    help: str


@dataclass(frozen=True)
class Choice:
    """One setting of a configuration that is picked from a list: its URL key and the preset's value.

    Several values are separated by commas.
    """

    key: str
    label: str
    value: str
    options: tuple[str, ...]
    help: str
    several: bool = False


Field = Bound | Choice


def generation(kind: str = BOUNDS) -> int:
    """Return a count that grows whenever the controls of this kind must show a new value. `kind`: slot + BOUNDS or
    CHOICES."""
    return st.session_state.setdefault(kind, 0)


def bound_value(b: Bound) -> float:
    return float(_values().get(b.key, b.value))


def choice_value(c: Choice) -> str:
    return str(_values().get(c.key, c.value))


def put(field: Field, value: float | str, *, done: bool = True) -> None:
    """Remember the value; write the URL once it is final (`done`)."""
    if value == field.value:
        _values().pop(field.key, None)
    else:
        _values()[field.key] = value
    if done:
        _write_url(slot_of(field.key))


def put_if_new(field: Field, value: float | str) -> None:
    """Put what a control shows, if it is new. Putting an old value would write the URL while somebody drags a bound."""
    if value != _values().get(field.key, field.value):
        put(field, value)


def reset(slot: str = FIRST) -> None:
    """Return to the preset's own values."""
    for key in _values_of(slot):
        del _values()[key]
    _forget_notice(slot)
    _refresh_controls(slot)
    _write_url(slot)


def swap() -> None:
    """Exchange what was set of the first configuration with what was set of the second."""
    swapped = {SECOND + key: value for key, value in _values_of(FIRST).items()}
    swapped |= {key.removeprefix(SECOND): value for key, value in _values_of(SECOND).items()}
    st.session_state["fields"] = swapped
    for slot in (FIRST, SECOND):
        _forget_notice(slot)
        _refresh_controls(slot)
    _write_url(FIRST, SECOND)


def show_second(shown: bool) -> None:
    """Keep the second configuration in the URL only while it has controls."""
    if not shown:
        address.write({key: None for key in in_url() if slot_of(key) == SECOND})
    st.session_state["second"] = shown


def show_bounds(bounds: list[Bound], slot: str = FIRST) -> None:
    st.session_state[f"{slot}shown_bounds"] = bounds


def shown_bounds(slot: str = FIRST) -> list[Bound]:
    """Return the bounds that have controls, with the preset's values."""
    return st.session_state.get(f"{slot}shown_bounds", [])


def refresh_bound_controls() -> None:
    """Call after setting bounds from code: refresh the sliders and the URL."""
    st.session_state[BOUNDS] = generation() + 1
    _write_url(FIRST)


def is_changed(slot: str = FIRST) -> bool:
    return bool(_values_of(slot))


def is_shown(slot: str) -> bool:
    """Check whether a slot has controls. The second has them only if two configurations are compared."""
    return slot == FIRST or bool(st.session_state.get("second"))


def slot_of(key: str) -> str:
    return SECOND if key.startswith(SECOND) else FIRST


def sync_choices(choices: list[Choice], slot: str = FIRST) -> None:
    """Take over choices from an address that the page has arrived at."""
    _sync(list(choices), CHOICES, slot)


def sync_bounds(bounds: list[Bound], choices: list[Choice], slot: str = FIRST) -> None:
    """Do the same with bounds, and forget bounds that do not exist with these choices."""
    _sync(list(bounds), BOUNDS, slot)
    keys = {field.key for field in (*bounds, *choices)}
    gone = set(_values_of(slot)) - keys
    for key in gone:
        del _values()[key]
    if gone:
        _write_url(slot)


def _sync(fields: list[Field], kind: str, slot: str) -> None:
    arrived = [field for field in fields if address.takes(field.key)]
    if not arrived:
        address.write({key: value for key, value in in_url().items() if slot_of(key) == slot and is_shown(slot)})
        return
    wrong = []
    for field in arrived:
        _values().pop(field.key, None)
        if (raw := address.text(field.key)) is not None:
            wrong += _take(field, raw)
    st.session_state[slot + kind] = generation(slot + kind) + 1  # the controls may still show another preset's values
    if wrong:
        notices.put(f"{slot}fields", " ".join(wrong))
    elif kind == CHOICES:
        _forget_notice(slot)
    _write_url(slot)


def _take(field: Field, raw: str) -> list[str]:
    """Put what the URL has, or return what is wrong with it."""
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


def _values() -> dict[str, float | str]:
    return st.session_state.setdefault("fields", {})


def _values_of(slot: str) -> dict[str, float | str]:
    return {key: value for key, value in _values().items() if slot_of(key) == slot}


def _forget_notice(slot: str) -> None:
    notices.clear(f"{slot}fields")


def _refresh_controls(slot: str) -> None:
    """Make every control of this slot take its value again."""
    for kind in (slot + BOUNDS, slot + CHOICES):
        st.session_state[kind] = generation(kind) + 1


def in_url() -> dict[str, str]:
    """Return URL key → text. A bound that is being dragged is there with the value that it had before."""
    return st.session_state.setdefault("fields_in_url", {})


def _write_url(*slots: str) -> None:
    """Make the URL agree with the fields of these slots that differ from the preset's.

    The other slot is left alone. It may be dragged at this moment.
    """
    values = {key: value for slot in slots if is_shown(slot) for key, value in _values_of(slot).items()}
    wanted = {key: value if isinstance(value, str) else f"{value:.12g}" for key, value in values.items()}
    others = {key: value for key, value in in_url().items() if slot_of(key) not in slots}
    address.write({key: wanted.get(key) for key in {*in_url(), *wanted} - others.keys()})
    st.session_state["fields_in_url"] = others | wanted
