"""Everything that a visitor has chosen: one table of fields. No other file writes the address.

A run of the page is `begin`, then the page, then `end`. Between them `get` returns the value of a field.

1. The address is read when a visit begins, and when it is another one than this page has written last although nobody
   has picked anything: that is Back or Forward. It is written once, at the end: one choice is one entry of the history.
2. A widget shows a field: it gets `get(key)` as its default and `widget(key)` as its Streamlit key. What somebody picks
   is taken when the next run begins, so no widget needs a callback. A field whose widget is not drawn keeps its value.
3. Code changes a field by `change`, a link by `follow`. Both give the widget another Streamlit key: a request that the
   browser sent before it knew of the change still has the old value, but of a widget that is not there any more.

Every request runs the whole page, so the last one decides what is shown, whatever became of those before it.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from data import configuration, options, reading
from data.configuration import DEFAULT_PRESET, FIRST, SECOND, SECOND_PRESET, slot_of
from data.kl_example import DISTANCE, DISTANCES, LOSS, LOSSES, MOST_POSITIONS, TARGETS
from data.recorded import LATEST, USUAL_RUN
from streamlit.runtime.uploaded_file_manager import UploadedFile
from text import phrases
from text.pages import PAGES

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RULE_NAMES
from rlcorr.systems.export import SYSTEMS

Values = configuration.Values
VIEWS = frozenset(PAGES)
LONGEST = 4000
"""Characters of a value in the address."""
LIVE = "live"
"""Streamlit's key of the live part of a page, which has the sliders of bounds and of the batch size."""


@dataclass(frozen=True)
class Field:
    """What can be chosen: its default, and how the address has it."""

    default: Any
    """The value, or a function of the other values. The address does not have it."""
    read: reading.Read | None = None
    """Without it, the field is never in the address."""
    write: Callable[[Any], str] = str
    views: Collection[str] = VIEWS
    """The views whose addresses have it."""
    clears: tuple[str, ...] = ()
    """Fields that have their defaults again when somebody picks another value of this one."""
    take: Callable[[Any], Any] = lambda value: value
    """What is remembered of the value of its widget."""


def _joined(names: list[str]) -> str:
    return ",".join(names)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"


def _one(options: Collection[str], noun: str, default: str, *views: str, clears: tuple[str, ...] = ()) -> Field:
    return Field(default, reading.one_of(options, noun, default), views=views or VIEWS, clears=clears)


def _some(default: Any, read: reading.Read, *views: str) -> Field:
    return Field(default, read, _joined, views or VIEWS)


def _switch(*views: str) -> Field:
    return Field(False, lambda text, _: text in ("true", "1"), lambda _: "true", views)


def _choice(key: str) -> Field:
    """Return the row of a choice of a configuration, such as its level of weights."""
    views = VIEWS if slot_of(key) == FIRST else ("compare",)
    return Field(reading.own_choice(key), reading.choice(key), _joined if key.endswith("rules") else str, views)


def _bound(key: str) -> Field:
    """Return the row of a bound of a configuration. Which bounds there are depends on the other values."""
    views = VIEWS if slot_of(key) == FIRST else ("compare",)
    return Field(reading.own_bound(key), reading.bound(key), "{:.12g}".format, views)


CHOICES = [choice.key for choice in configuration.choices_of(CorrectionConfig())]
BOUND_KEY = re.compile(rf"(?:{re.escape(SECOND)})?(?:is|{'|'.join(map(re.escape, RULE_NAMES))})_(?:upper|lower)")
CONFIG, CONFIG_B = "config", "b.config"
"""Names of all choices and bounds of a configuration, for `clears`."""

FIELDS: dict[str, Field] = {
    "view": _one(PAGES, "page", "start"),
    "run": Field(USUAL_RUN, reading.run, clears=("token", "take")),
    "step": Field(LATEST, reading.step, clears=("token",)),
    "preset": _one(PRESETS, "preset", DEFAULT_PRESET, clears=(CONFIG,)),
    **{key: _choice(key) for key in CHOICES},
    "preset_b": _one(PRESETS, "preset", SECOND_PRESET, "compare", clears=(CONFIG_B,)),
    **{SECOND + key: _choice(SECOND + key) for key in CHOICES},
    "answers": Field(reading.USUAL_BATCH, reading.answers, views=("gradient", "compare")),
    "kl_loss": _one(LOSSES, "loss", LOSS, "kl"),
    "kl_target": _one(TARGETS, "target", "reference", "kl"),
    "kl_distance": Field(DISTANCE, reading.listed("kl_distance", DISTANCES, 3.0), _short, ("kl",)),
    "kl_position": Field(0.0, reading.listed("kl_position", range(MOST_POSITIONS + 1), 0.0), _short, ("kl",)),
    "turns": _switch("bench"),
    "token": Field(None, reading.token, lambda at: f"{at[0]}.{at[1]}", ("tokens",)),
    "system": Field(next(iter(SYSTEMS)), reading.system(SYSTEMS), views=("bench", "yours"), clears=("take",)),
    "keep": _one(options.KEEPS, "keep", options.KEEP_DEFAULT, "yours"),
    "methods": _some(options.DRAWN, reading.some_of(lambda _: options.OFFERED, "method"), "mismatch"),
    "part": _one(options.TRAINING, "part", options.TRAINING[0], "training"),
    "with": _some([], reading.overlaid, "training"),
    "study": Field(reading.first_study, reading.study, views=("training",), clears=("presets",)),
    "presets": _some(reading.drawn_presets, reading.some_of(reading.arms, "preset"), "training"),
    "learn": _one(options.LEARN, "part", options.LESSONS, "learn"),
    "lesson": Field("", reading.lesson, views=("learn",)),
    "fix": _one(options.FIXES, "correction", options.NOTHING, "start"),
    "start_bound": Field(options.START_USUAL, reading.start_bound, "{:.12g}".format, ("start",)),
    **{key: Field(value, reading.lab(key), _short, ("lab",)) for key, value in options.LAB.items()},
    "tour": Field("", reading.tour, clears=("tour_step", "tour_done", "tour_open")),
    "tour_step": Field(1, reading.tour_step),
    "tour_open": Field(0, reading.tour_open),
    "tour_done": Field("", reading.tour_done),
    "hide": _some([], reading.some_of(lambda _: options.HIDEABLE, "control in hide=", "It hides nothing.")),
    "projector": Field(False, reading.projector, lambda _: "1"),
    # The rest is not in the address.
    "tokens_order": Field(next(iter(options.ORDERS)), clears=("tokens_page",)),
    "tokens_page": Field(1),
    "use_it": Field(False),
    "paste": Field(False),
    "pasted": Field(""),
    "budget_of": Field(phrases.BUDGET_KEEP),
    "budget_share": Field(95.0),
    "take": Field(None),
    "details": Field(False),
    **{key: Field(False) for key in options.REPAIRS},
    "dropped": Field([], take=lambda files: [file.file_id for file in files if isinstance(file, UploadedFile)]),
    "search": Field(""),
}  # fmt: skip
PLACES = {key: place for place, key in enumerate(FIELDS)}


@dataclass
class Visit:
    """The state of one visitor's page."""

    values: dict[str, Any] = field(default_factory=dict)
    """What differs from the defaults."""
    notices: dict[str, str] = field(default_factory=dict)
    """What is wrong with the address that was read last, until the address changes."""
    address: dict[str, list[str]] = field(default_factory=dict)
    """The address that the browser has or is about to have."""
    texts: dict[str, str] = field(default_factory=dict)
    """The values as `_texts` had them when the address was read or written."""
    asked: dict[str, list[str]] = field(default_factory=dict)
    """The address that came with the request of this run."""
    generations: dict[str, int] = field(default_factory=dict)
    """How often code has changed a field, or a group of fields."""
    first: int = field(default_factory=lambda: secrets.randbelow(2**31))
    """The first generation: a browser whose server was restarted still knows those of another visit."""
    pressed: bool = False
    """Whether a button or a link was pressed for this run."""
    runs: int = 0


def get(key: str) -> Any:
    return _get(_visit().values, key)


def values() -> Mapping[str, Any]:
    """Return what differs from the defaults, for the functions of data/configuration.py."""
    return _visit().values


def is_changed(slot: str) -> bool:
    """Check whether the configuration of this slot differs from its preset."""
    return any(_group(key) == _config(slot) for key in _visit().values)


def widget(key: str) -> str:
    """Return Streamlit's key for the widget that shows this field.

    A space for each change by code makes it another widget, whose CSS class is the same.
    """
    return key + " " * _visit().generations.get(_group(key), 0)


def generation(key: str) -> int:
    """Return a number that changes when code has changed this field."""
    return _visit().first + _visit().generations.get(_group(key), 0)


def run_number() -> int:
    """Return the number of this run. A component that gets another one than before draws its data once more."""
    return _visit().runs


def notices() -> list[str]:
    """Return what is wrong with the address."""
    return list(_visit().notices.values())


def texts() -> dict[str, str]:
    """Return the address of this page: key → text."""
    return _texts(_visit().values)


def change(**changes: Any) -> None:
    """Give fields other values from code: in the callback of a button, or before their widgets are drawn."""
    visit = _visit()
    visit.pressed = True
    other = [key for key, value in changes.items() if not _is_same(value, get(key))]
    _assign(visit, changes)
    for name in {*map(_group, other)}:  # a widget that shows the value already stays as it is
        _renew(visit, name)


def press() -> None:
    """Say that a button was pressed, in its callback, if it changes no field."""
    _visit().pressed = True


def reset(slot: str) -> None:
    """Return to the preset's own values."""
    visit = _visit()
    visit.pressed = True
    _clear(visit, (_config(slot),))


def swap() -> None:
    """Exchange the configurations A and B."""
    visit = _visit()
    presets = {"preset": get("preset_b"), "preset_b": get("preset")}
    of_a, of_b = ({k: v for k, v in visit.values.items() if _group(k) == _config(slot)} for slot in (FIRST, SECOND))
    moved = {SECOND + key: value for key, value in of_a.items()}
    change(**presets)  # clears both
    change(**moved, **{key.removeprefix(SECOND): value for key, value in of_b.items()})


def keep_to(key: str, options: Sequence[Any]) -> Any:
    """Return the value of a field whose options may have changed. What is no option any more is forgotten."""
    value = get(key)
    if isinstance(value, list):
        left = [one for one in value if one in options]
        if left != value:
            change(**{key: left})
    elif value not in options:
        _clear(_visit(), (key,))
        if get(key) not in options:
            change(**{key: options[0]})
    return get(key)


def query_of(link: Mapping[str, str]) -> dict[str, str]:
    """Return the whole address of a link, which names only what it changes."""
    link = _with_step(link)
    cleared, view = _cleared(link), _view(link.get("view", get("view")))
    kept = {key: text for key, text in _all_texts(_visit().values).items() if not {key, _group(key)} & cleared}
    rows = {key: (_field(key), text) for key, text in _ordered({**kept, **link}).items()}
    return {
        key: text
        for key, (row, text) in rows.items()
        if view in row.views and text != row.default and (text or row.write is _joined)
    }


def _with_step(link: Mapping[str, str]) -> Mapping[str, str]:
    """Add the latest step to a link that names a run without a step."""
    return {"step": LATEST, **link} if "run" in link else link


def address_of(link: Mapping[str, str]) -> str:
    """Return `query_of`, relative to the app."""
    return f"?{urlencode(query_of(link))}"


def follow(link: Mapping[str, str]) -> None:
    """Take what a link names, in the callback of the link."""
    visit, link = _visit(), _with_step(link)
    visit.pressed = True
    view = _view(link.get("view", get("view")))
    _clear(visit, _cleared(link))
    _read(visit, {key: [text] for key, text in link.items()}, view)
    for key in link:
        _renew(visit, _group(key))


def begin() -> None:
    """Take what the request of this run brings."""
    is_first = "visit" not in st.session_state
    visit = st.session_state.setdefault("visit", Visit())
    asked = {key: st.query_params.get_all(key) for key in st.query_params}
    picked = _picked()
    if asked != visit.address and picked == {"dropped": []}:  # Back from the page of the box, which is empty elsewhere
        picked = {}
    visit.asked, visit.runs = asked, visit.runs + 1
    if is_first or (asked != visit.address and not picked and not visit.pressed):
        _arrive(visit, asked, is_first)
        picked = _picked()  # a restarted server gets a choice with its first request
    _assign(visit, picked)
    if _texts(visit.values) != visit.texts:  # the address gets another one, without what was wrong
        visit.notices = {}


def end() -> None:
    """Write the address, unless the browser has it."""
    visit = _visit()
    now = _texts(visit.values)
    if now != visit.texts:
        visit.texts, visit.address = now, {key: [text] for key, text in now.items()}
    visit.pressed = False
    if visit.address != visit.asked:
        st.query_params.from_dict(visit.address)


def _visit() -> Visit:
    return st.session_state["visit"]


def _field(key: str) -> Field:
    return FIELDS[key] if key in FIELDS else _bound(key)


def _get(values: Mapping[str, Any], key: str) -> Any:
    if key in values:
        return values[key]
    default = _field(key).default
    return default(values) if callable(default) else default


def _config(slot: str) -> str:
    return CONFIG if slot == FIRST else CONFIG_B


def _group(key: str) -> str:
    """Return the name of the configuration that a choice or a bound belongs to; of another field its key."""
    is_of_configuration = key.removeprefix(SECOND) in CHOICES or BOUND_KEY.fullmatch(key)
    return _config(slot_of(key)) if is_of_configuration else key


def _is_same(one: Any, other: Any) -> bool:
    """Compare two values; lists without their order."""
    return sorted(one) == sorted(other) if isinstance(one, list) and isinstance(other, list) else one == other


def _picked() -> dict[str, Any]:
    """Return what the browser's widgets and sliders show that differs."""
    picked: dict[str, Any] = {}
    for key, row in FIELDS.items():
        if (name := widget(key)) in st.session_state:
            value = row.take(st.session_state[name])
            if not _is_same(value, get(key)):
                picked[key] = value
    for slider, at in dict(st.session_state.get(LIVE, {}).get("moved") or {}).items():
        key = slider.removeprefix(f"{LIVE}_")
        if at["generation"] == generation(key):
            value = type(get(key) or 0.0)(at["value"])
            if value != get(key):
                picked[key] = value
    return picked


def _assign(visit: Visit, changes: Mapping[str, Any]) -> None:
    _clear(visit, _cleared({key: value for key, value in changes.items() if not _is_same(value, get(key))}))
    for key, value in changes.items():
        _put(visit, key, value)


def _put(visit: Visit, key: str, value: Any) -> None:
    visit.values.pop(key, None)
    if not _is_same(value, get(key)):
        visit.values[key] = value


def _cleared(keys: Iterable[str]) -> set[str]:
    return {cleared for key in keys for cleared in _field(key).clears}


def _clear(visit: Visit, names: Collection[str]) -> None:
    for key in [key for key in visit.values if key in names or _group(key) in names]:
        del visit.values[key]
    for name in names:
        _renew(visit, name)


def _renew(visit: Visit, name: str) -> None:
    visit.generations[name] = visit.generations.get(name, 0) + 1


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    view = _get(values, "view")
    return {key: text for key, text in _all_texts(values).items() if view in _field(key).views}


def _view(name: str) -> str:
    """Return the view with this name; the first one if there is none."""
    return name if name in PAGES else "start"


def _all_texts(values: Mapping[str, Any]) -> dict[str, str]:
    return _ordered({key: _field(key).write(value) for key, value in values.items() if _field(key).read is not None})


def _ordered(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts in the order of the table, so that the same state always has the same address."""
    return {key: texts[key] for key in sorted(texts, key=lambda key: (PLACES.get(key, len(PLACES)), key))}


def _arrive(visit: Visit, asked: dict[str, list[str]], is_first: bool) -> None:
    """Take the values of an address. Fields of other views keep theirs."""
    old = visit.values
    view = _view(asked.get("view", ["start"])[-1])
    visit.address, visit.notices = asked, {}
    visit.values = {key: value for key, value in old.items() if view not in _field(key).views}
    _read(visit, asked, view)
    new = visit.values
    changed = [key for key in {**old, **new} if key not in old or key not in new or not _is_same(old[key], new[key])]
    if not is_first:  # else there is no widget yet
        for name in {*map(_group, changed), *_cleared(changed)}:
            _renew(visit, name)
    visit.texts = _texts(new)


def _read(visit: Visit, asked: Mapping[str, list[str]], view: str) -> None:
    """Read the texts of an address in the order of the table, because a step depends on its run; name what is wrong."""
    rows = {key: FIELDS[key] for key in FIELDS if key in asked}
    rows |= {key: _bound(key) for key in asked if key not in rows and BOUND_KEY.fullmatch(key)}
    readable = {key: row for key, row in rows.items() if row.read is not None}
    if unknown := [f"{key[:40]}=" for key in asked if key not in readable]:
        visit.notices["unknown"] = "The address has {keys} which means nothing here.".format(
            keys=", ".join(unknown[:5])
        )
    for key, row in readable.items():
        try:
            value = _value(key, row, asked[key], view, visit)
        except reading.PartlyWrong as error:
            value, visit.notices[key] = error.value, str(error)
        except UsageError as error:
            visit.notices[key] = str(error)
            continue
        _put(visit, key, value)


def _value(key: str, row: Field, given: list[str], view: str, visit: Visit) -> Any:
    assert row.read is not None
    text = ",".join(given) if row.write is _joined else given[-1]
    if view not in row.views:
        titles = ", ".join(page.title for name, page in PAGES.items() if name in row.views)
        raise UsageError(f"{key}= in the address changes nothing here: it belongs to {titles}.")
    if len(text) > LONGEST:
        raise UsageError(f"{key}= in the address is longer than {LONGEST} characters, so it is left out.")
    if len(given) > 1 and row.write is not _joined:
        visit.notices[f"{key} twice"] = f"{key}= is twice in the address; using the last: {text[:80]}."
    if not text and row.write is not _joined:
        return row.default(visit.values) if callable(row.default) else row.default
    return row.read(text, visit.values)
