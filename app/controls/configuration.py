"""The configuration that a page shows: a preset, changed choices, and bounds."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import streamlit as st
from components.live_part import LiveContent, Slider
from data.names import preset_label
from state import address, fields, notices, session
from state.fields import Bound
from text import phrases
from text.formatting import plain

from controls import drag
from controls.bounds import bounds_of, slider_values_of, with_bounds
from controls.choices import choice_boxes, choices_of, edited
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.errors import UsageError, unknown
from rlcorr.strips.packing import Package

SECOND_PRESET = "decoupled_geo_rs_token_tis"
PRESET_KEYS = {fields.FIRST: ("preset", session.DEFAULT_PRESET), fields.SECOND: ("preset_b", SECOND_PRESET)}
"""Slot → key of its preset, in the session and in the address, and the default."""


def restore_preset(slot: str = fields.FIRST) -> str:
    """Take the preset of this slot from the address or the last view, before its picker is drawn, and return it."""
    (key, default), names = PRESET_KEYS[slot], list(PRESETS)
    wrong = address.one_of(names, lambda raw: f"{unknown('preset', raw, names)} Showing {default}.")
    address.restore(key, default, wrong)
    return preset_name(slot)


def preset_box(label: str, slot: str = fields.FIRST) -> None:
    """Show the picker of the preset of this slot."""
    key, default = PRESET_KEYS[slot]
    name = st.selectbox(
        label, list(PRESETS), key=key, format_func=preset_label, on_change=_preset_changed, args=(key, slot)
    )
    address.say(key, name, default)


def preset_name(slot: str = fields.FIRST) -> str:
    """Return the picked preset of this slot."""
    return st.session_state[PRESET_KEYS[slot][0]]


def _preset_changed(key: str, slot: str) -> None:
    notices.clear(key)
    if address.differs(key):
        fields.reset(slot)


def settings(config: CorrectionConfig, slot: str = fields.FIRST, label: str = phrases.CHOICES) -> CorrectionConfig:
    """Show the controls of the choices, and return the configuration with these choices and with its present bounds."""
    choices = _in_slot(choices_of(config), slot)
    fields.sync_choices(choices, slot)
    with st.expander(label, expanded=_is_edited(choices), key=f"{slot}choices"):
        choice_boxes(choices)
    try:
        config = edited(config, choices)
    except UsageError as error:
        st.error(plain(f"{error} {phrases.CONTRADICTION}"))
        fields.show_bounds([], slot)
        return config
    bounds = _in_slot(bounds_of(config), slot)
    fields.sync_bounds(bounds, choices, slot)
    fields.show_bounds(bounds, slot)
    return bounded(config, slot)


F = TypeVar("F", Bound, fields.Choice)


def _in_slot(preset_fields: list[F], slot: str) -> list[F]:
    """Give the fields the keys of this slot, and labels that show which slot it is."""
    if slot == fields.FIRST:
        return preset_fields
    return [replace(field, key=slot + field.key, label=f"B: {field.label}") for field in preset_fields]


def _is_edited(choices: list[fields.Choice]) -> bool:
    return any(fields.choice_value(c) != c.value for c in choices)


StripOf = Callable[[CorrectionConfig, Bound, tuple[float, ...]], tuple[str, Callable[[], Package]]]
"""(configuration, bound, slider values) → (key of the strip, function that makes it)."""


def bounded(config: CorrectionConfig, slot: str = fields.FIRST) -> CorrectionConfig:
    """Return the configuration with the present values of its bounds."""
    return with_bounds(config, {b.id: fields.bound_value(b) for b in fields.shown_bounds(slot)})


def bound_sliders(
    config: CorrectionConfig,
    answer: Callable[[CorrectionConfig], LiveContent],
    *,
    strip: StripOf | None = None,
    slider_values: Callable[[Bound, float], tuple[float, ...]] = slider_values_of,
    slot: str = fields.FIRST,
    text: str = "",
) -> list[drag.Dragged]:
    """Return a slider for each bound that has controls.

    Args:
        config: The configuration.
        answer: Makes the content of the live part for a configuration.
        strip: Makes the strip of a bound; None if there are no strips.
        slider_values: The values of a bound's slider, from the bound and its present value.
        slot: The slot of the configuration.
        text: The name of the moving text below the first slider.
    """
    sliders = []
    now = bounded(config, slot)
    for index, b in enumerate(fields.shown_bounds(slot)):
        key, value = f"live_{b.key}", fields.bound_value(b)
        values = slider_values(b, value)
        slider = Slider(
            key=key,
            label=b.label,
            values=values,
            value=value,
            generation=_generation(b),
            address=drag.offer(key, partial(_answer_at, answer, now, b)),
            strip=None if strip is None else drag.offer_strip(key, *strip(now, b, values)),
            exact=(b.low, b.high),
            text="" if index else text,
            help=b.help,
        )
        sliders.append(drag.Dragged(slider, partial(_put, b)))
    return sliders


def resets() -> dict[str, str]:
    """Return slot → label of its reset button, for the slots in which something is changed."""
    labels = {fields.FIRST: phrases.RESET, fields.SECOND: phrases.RESET_B}
    return {slot: label for slot, label in labels.items() if fields.is_changed(slot) and fields.is_shown(slot)}


def _put(b: Bound, value: float, done: bool) -> None:
    fields.put(b, min(max(value, b.low), b.high), done=done)


def _answer_at(
    answer: Callable[[CorrectionConfig], LiveContent], config: CorrectionConfig, b: Bound, value: float
) -> LiveContent:
    if not b.low <= value <= b.high:
        raise UsageError(f"{value:g} is out of range; allowed: {b.low:g} to {b.high:g}.")
    return answer(with_bounds(config, {b.id: value}))


def _generation(b: Bound) -> int:
    return fields.generation(fields.slot_of(b.key) + fields.BOUNDS)


def set_threshold(config: CorrectionConfig, threshold: float, bound: BoundId) -> None:
    """Set the bounds of the weights, or of a rule, to this threshold, within the ranges of their controls."""
    values = {b.id: b.value for b in bounds_of(at_threshold(config, threshold, bound))}
    for b in fields.shown_bounds():
        if b.id.rule_index == bound.rule_index and (value := values.get(b.id)) is not None:
            fields.put(b, min(max(value, b.low), b.high), done=False)
    fields.refresh_bound_controls()
