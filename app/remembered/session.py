"""What the pages remember. `run`, `step` and `preset` are widgets bound to the URL; the fields of a configuration, its
choices and its bounds, are kept here, and so is the token that the Tokens view has opened.

A field is in the URL, under its key, only where it differs from the preset's own value. It is written when a control is
let go, not while it is dragged, and read again whenever the URL says something that this module did not write: on the
first visit, and after the browser's Back button.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import Page

BOUNDS, CHOICES = "token", "choices_token"
FIRST, SECOND = "", "b."
"""Prefixes of URL keys: fields of the configuration that all views share, and of the one it is compared with."""
NEWEST, LATEST, DEFAULT_PRESET = "newest", "latest", "decoupled_token_is"
ANOTHER = "another"


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


def choose(run: str, *, preset: str | None = None) -> None:
    """As if this run, its latest step and this preset, as it is, had been picked."""
    st.session_state["run"], st.session_state["step"] = run, LATEST
    for key in ("run", "step"):
        changed(key)
    if preset is not None:
        choose_preset(preset)


def choose_preset(preset: str) -> None:
    """As it is, without anything that was changed about the last one."""
    st.session_state["last_preset"] = preset
    changed("preset")
    reset_fields()


def placed() -> dict[str, str]:
    """The run and the step that are shown, as a link says them, also where the URL leaves them to the newest."""
    shown = st.session_state.get("selection")
    if shown is None:
        return {}
    return {"run": shown.slug} | ({} if shown.step is None else {"step": str(shown.step)})


def set_pages(pages: Mapping[str, Page]) -> None:
    st.session_state["pages"] = pages


def pages() -> Mapping[str, Page]:
    """Title → page, in the order of the navigation."""
    return st.session_state["pages"]


def configured() -> dict[str, str]:
    """The preset that was chosen last and what was changed about it, as a link says it."""
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    return ({} if preset == DEFAULT_PRESET else {"preset": preset}) | _written()


def go(title: str, query: Mapping[str, str] | None = None) -> None:
    """Show another view, with the preset that was chosen last and what `query` says. Widgets that stay write themselves
    to the URL again."""
    kept = dict(query or {}) | {key: st.query_params[key] for key in ("hide", "projector") if key in st.query_params}
    preset = st.session_state.get("last_preset", DEFAULT_PRESET)
    st.session_state.pop("preset", None)  # the picker takes it from the URL
    st.switch_page(pages()[title], query_params=kept if preset == DEFAULT_PRESET else kept | {"preset": preset})


def set_source(source: str) -> None:
    st.session_state["source"] = source


def source() -> str:
    """Where the pictures of the chosen step come from, in one line."""
    return st.session_state.get("source", "")


def changed(key: str) -> None:
    """A person picked something else: what was said about the old value is over."""
    st.session_state.pop(f"{key}_notice", None)


def notice(key: str, sentence: str) -> None:
    st.session_state[f"{key}_notice"] = sentence


def notices(*more: str) -> list[str]:
    """What is wrong with the URL, about the pickers that all views have and about `more` of them."""
    keys = [f"{key}_notice" for key in ("run", "step", "preset", "fields", *more)]
    return [st.session_state[key] for key in keys if key in st.session_state]


# --- the fields of a configuration ---


def token(of: str = BOUNDS) -> int:
    """Changes whenever the controls of the bounds, or of the choices, must take a new value from here."""
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


def reset_fields(side: str = FIRST) -> None:
    """Back to the preset's own values."""
    for key in _own(side):
        del _set()[key]
    st.session_state.pop(f"{side}fields_notice", None)
    _take_over(side)
    _write_url(side)


def swap_fields() -> None:
    """What was set of the first configuration is now set of the second, and the other way round."""
    moved = {SECOND + key: value for key, value in _own(FIRST).items()}
    moved |= {key.removeprefix(SECOND): value for key, value in _own(SECOND).items()}
    st.session_state["fields"] = moved
    for side in (FIRST, SECOND):
        st.session_state.pop(f"{side}fields_notice", None)
        _take_over(side)
    _write_url(FIRST, SECOND)


def show_second(shown: bool) -> None:
    """The second configuration is in the URL only where it has controls."""
    if shown and not st.session_state.get("second"):
        st.session_state[f"{SECOND}came_back"] = True
    for key in [] if shown else [key for key in st.query_params if side_of(key) == SECOND]:
        del st.query_params[key]
    st.session_state["second"] = shown


def show_bounds(bounds: list[Bound], side: str = FIRST) -> None:
    st.session_state[f"{side}shown_bounds"] = bounds


def shown_bounds(side: str = FIRST) -> list[Bound]:
    """The bounds that have controls, with the preset's values."""
    return st.session_state.get(f"{side}shown_bounds", [])


def fields_are_set() -> None:
    """Something else than their controls has set bounds: the controls take them, and the URL."""
    st.session_state[BOUNDS] = token() + 1
    _write_url(FIRST)


def is_changed(side: str = FIRST) -> bool:
    return bool(_own(side))


def side_of(key: str) -> str:
    return SECOND if key.startswith(SECOND) else FIRST


def enter(view: str) -> bool:
    """Note that another view is shown, and say so; changing the view empties the URL of what is not a widget."""
    another = st.session_state.get("view") != view
    if another:
        st.session_state["view"] = view
        for came_back in ("came_back", "token_came_back", "with_came_back"):
            st.session_state[came_back] = True
        st.session_state["second"] = False
    return another


def sync_choices(choices: list[Choice], side: str = FIRST) -> None:
    """Take over choices from the URL, unless the URL is what was written last."""
    if st.session_state.pop(f"{side}came_back", False) and _own(side) and not set(_own(side)) & set(st.query_params):
        _write_url(side)
        return
    _sync(list(choices), CHOICES, side)


def sync_bounds(bounds: list[Bound], choices: list[Choice], side: str = FIRST) -> None:
    """The same for bounds, which depend on the choices; bounds that no longer exist are forgotten."""
    _sync(list(bounds), BOUNDS, side)
    known = {field.key for field in (*bounds, *choices)}
    gone = set(_own(side)) - known
    for key in gone:
        del _set()[key]
    if gone:
        _write_url(side)


def _sync(fields: list[Field], of: str, side: str) -> None:
    keys = {field.key for field in fields}
    raw = {key: st.query_params[key] for key in keys if key in st.query_params}
    if raw == {key: text for key, text in _written().items() if key in keys}:
        return
    wrong = []
    for field in fields:
        _set().pop(field.key, None)
        if field.key in raw:
            wrong += _take(field, raw[field.key])
    st.session_state[side + of] = token(side + of) + 1
    if wrong:
        notice(f"{side}fields", " ".join(wrong))
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


def _own(side: str) -> dict[str, float | str]:
    return {key: value for key, value in _set().items() if side_of(key) == side}


def _take_over(side: str) -> None:
    """Let every control of this side take its value from here."""
    for of in (side + BOUNDS, side + CHOICES):
        st.session_state[of] = token(of) + 1


def _written() -> dict[str, str]:
    return st.session_state.setdefault("fields_in_url", {})


def _write_url(*sides: str) -> None:
    """Make the URL agree with the fields of these sides that differ from the preset's. The other side is left alone: it
    may be dragged at this moment, or have a new value in the URL that is not read yet."""
    shown = [side for side in sides if side == FIRST or st.session_state.get("second")]
    mine = {key: value for side in shown for key, value in _own(side).items()}
    wanted = {key: value if isinstance(value, str) else f"{value:.12g}" for key, value in mine.items()}
    written = {key: text for key, text in _written().items() if side_of(key) in sides}
    current = st.query_params.to_dict()
    for key in {*written, *wanted}:
        if key in current and key not in wanted:
            del st.query_params[key]
    fresh = {key: text for key, text in wanted.items() if current.get(key) != text}
    if fresh:
        st.query_params.update(fresh)
    others = {key: text for key, text in _written().items() if key not in written}
    st.session_state["fields_in_url"] = others | wanted


# --- the opened token ---

Place = tuple[int, int]
"""Row and column of a token, both counted from 0; in the URL as token=ROW.COLUMN."""


def opened() -> Place | None:
    """The token that somebody opened, or that the URL names."""
    return st.session_state.get("opened")


def open_token(place: Place | None) -> None:
    """Remember it and write the URL."""
    st.session_state["opened"] = place
    changed("token")
    wanted = None if place is None else f"{place[0]}.{place[1]}"
    if wanted is None:
        st.query_params.pop("token", None)
    elif st.query_params.get("token") != wanted:
        st.query_params["token"] = wanted
    st.session_state["token_in_url"] = wanted


def token_notice() -> str | None:
    return st.session_state.get("token_notice")


def sync_token(lengths: Sequence[int]) -> None:
    """Take over the token that the URL names, unless it is the one that was seen last. Another step closes the token.

    `lengths` are the numbers of tokens of the step's responses.
    """
    step = (selection().slug, selection().step)
    another = st.session_state.get("opened_in", step) != step
    st.session_state["opened_in"] = step
    came_back = st.session_state.pop("token_came_back", False)
    raw = st.query_params.get("token")
    if raw == st.session_state.get("token_in_url"):
        if another:
            open_token(None)
    elif raw is None and came_back and not another:
        open_token(opened())  # the URL was emptied on the way to another view
    else:
        _take_token(raw, lengths)


def _take_token(raw: str | None, lengths: Sequence[int]) -> None:
    """A wrong one stays in the URL, and is named, until another token is opened."""
    changed("token")
    st.session_state["token_in_url"] = raw
    place = _place(raw or "")
    there = place is not None and place[0] < len(lengths) and place[1] < lengths[place[0]]
    st.session_state["opened"] = place if there else None
    if raw is None or there:
        return
    if place is None:
        found = f"token={raw} is not a token: it must be ROW.COLUMN, such as 3.0."
    else:
        row = f"; response {place[0]} has {lengths[place[0]]} tokens" if place[0] < len(lengths) else ""
        found = f"token={raw} is not in this step: it has {len(lengths)} responses{row}, all counted from 0."
    notice("token", f"{found} Showing the one furthest from ratio 1.")


def _place(raw: str) -> Place | None:
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", raw)
    return None if found is None else (int(found[1]), int(found[2]))
