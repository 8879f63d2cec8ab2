"""The preset, what is changed about it, and its bounds: the configuration that a page shows."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import streamlit as st
from components.live_part import Moving, Slider
from state import fields, notices, session
from state.fields import Bound
from text.formatting import plain

from controls import drag
from controls.bounds import bounds_of, places_of, with_bounds
from controls.choices import choice_boxes, choices_of, edited
from controls.live import Dragged
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.bounds import at_threshold
from rlcorr.errors import UsageError, unknown
from rlcorr.strips.packing import Package


def preset_name(
    label: str = "Preset", key: str = "preset", default: str = session.DEFAULT_PRESET, side: str = fields.FIRST
) -> str:
    names = list(PRESETS)
    notices.check_url(key, names, lambda raw: f"{unknown('preset', raw, names)} Showing {default}.")
    session.restore(key)
    index, changed = names.index(default), (key, side)
    name = st.selectbox(
        label, names, index=index, key=key, bind="query-params", on_change=_preset_changed, args=changed
    )
    st.session_state[f"last_{key}"] = name
    return name


def _preset_changed(key: str, side: str) -> None:
    notices.clear(key)
    fields.reset(side)


def settings(config: CorrectionConfig, side: str = fields.FIRST) -> CorrectionConfig:
    """Controls for what a configuration weighs and rejects; the configuration as they say, with its bounds."""
    choices = _of_side(choices_of(config), side)
    fields.sync_choices(choices, side)
    with st.expander("Change what is weighed and rejected", expanded=_is_edited(choices), key=f"{side}choices"):
        choice_boxes(choices)
    try:
        config = edited(config, choices)
    except UsageError as error:
        st.error(plain(f"{error} Showing the preset itself."))
        fields.show_bounds([], side)
        return config
    bounds = _of_side(bounds_of(config), side)
    fields.sync_bounds(bounds, choices, side)
    fields.show_bounds(bounds, side)
    return bounded(config, side)


F = TypeVar("F", Bound, fields.Choice)


def _of_side(preset_fields: list[F], side: str) -> list[F]:
    """Under this side's keys, and labels that tell the sides apart."""
    if side == fields.FIRST:
        return preset_fields
    return [replace(field, key=side + field.key, label=f"B: {field.label}") for field in preset_fields]


def _is_edited(choices: list[fields.Choice]) -> bool:
    return any(fields.choice(c) != c.value for c in choices)


StripOf = Callable[[CorrectionConfig, Bound, tuple[float, ...]], tuple[str, Callable[[], Package]]]
"""Of a configuration, whose bound moves over these places: what its strip is known by, and the strip."""


def bounded(config: CorrectionConfig, side: str = fields.FIRST) -> CorrectionConfig:
    """With its bounds as they are now."""
    return with_bounds(config, {(b.rule, b.side): fields.bound(b) for b in fields.shown_bounds(side)})


def bound_sliders(
    config: CorrectionConfig,
    answer: Callable[[CorrectionConfig], Moving],
    *,
    strip: StripOf | None = None,
    places_of: Callable[[Bound, float], tuple[float, ...]] = places_of,
    side: str = fields.FIRST,
    text: str = "",
) -> list[Dragged]:
    """A slider for each bound. While it moves, what moves is looked up in a `strip`, or asked for; `text` names the
    moving text below the first."""
    sliders = []
    for number, b in enumerate(fields.shown_bounds(side)):
        key, now = f"live_{b.key}", bounded(config, side)
        places = places_of(b, fields.bound(b))
        slider = Slider(
            key=key,
            label=b.label,
            places=places,
            value=fields.bound(b),
            generation=_generation(b),
            address=drag.offer(key, partial(_answer_at, answer, now, b)),
            strip=None if strip is None else drag.offer_strip(key, *strip(now, b, places)),
            exact=(b.low, b.high),
            text="" if number else text,
            help=b.help,
        )
        sliders.append(Dragged(slider, partial(_put, b)))
    return sliders


def resets() -> dict[str, str]:
    """Side → what the button says that takes the preset's numbers back, where they are changed."""
    words = {fields.FIRST: "Reset to the preset's numbers", fields.SECOND: "Reset B to the preset's numbers"}
    return {side: label for side, label in words.items() if fields.is_changed(side) and fields.is_shown(side)}


def _put(b: Bound, value: float, done: bool) -> None:
    fields.put(b, min(max(value, b.low), b.high), done=done)


def _answer_at(
    answer: Callable[[CorrectionConfig], Moving], config: CorrectionConfig, b: Bound, value: float
) -> Moving:
    if not b.low <= value <= b.high:
        raise UsageError(f"{value:g} is out of range; allowed: {b.low:g} to {b.high:g}.")
    return answer(with_bounds(config, {(b.rule, b.side): value}))


def _generation(b: Bound) -> int:
    return fields.generation(fields.side_of(b.key) + fields.BOUNDS)


def set_threshold(config: CorrectionConfig, threshold: float, rule: int | None) -> None:
    """Put the bounds of the weights, or of a rule, where a budget puts them, within what their controls reach."""
    moved = {(b.rule, b.side): b.value for b in bounds_of(at_threshold(config, threshold, rule))}
    for b in fields.shown_bounds():
        if b.rule == rule and (value := moved.get((rule, b.side))) is not None:
            fields.put(b, min(max(value, b.low), b.high), done=False)
    fields.are_set()
