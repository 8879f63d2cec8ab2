"""The configuration that a visitor has chosen: a preset, changed choices, and bounds.

`Values` has what differs from the default, by the keys of the address. Those of B, on Compare, begin with `SECOND`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from data.bounds import Bound, bounds_of, with_bounds
from data.choices import Choice, choices_of, edited
from rlcorr import PRESETS, CorrectionConfig

Values = Mapping[str, Any]
FIRST, SECOND = "", "b."
"""The slots: the configuration that all views share (A), and B, which it is compared with."""
DEFAULT_PRESET, SECOND_PRESET = "decoupled_token_is", "decoupled_geo_rs_token_tis"
PRESET_KEYS = {FIRST: ("preset", DEFAULT_PRESET), SECOND: ("preset_b", SECOND_PRESET)}
"""Slot → key of its preset, and the default."""
F = TypeVar("F", Bound, Choice)


def slot_of(key: str) -> str:
    return SECOND if key.startswith(SECOND) else FIRST


def preset_of(values: Values, slot: str) -> str:
    return values.get(*PRESET_KEYS[slot])


def choices(values: Values, slot: str) -> list[Choice]:
    """Return the choices of this slot, with the preset's own values."""
    return _in_slot(choices_of(PRESETS[preset_of(values, slot)].config), slot)


def chosen(values: Values, slot: str) -> CorrectionConfig:
    """Return the preset with the changed choices. Raises `UsageError` if they contradict each other."""
    picked = {choice.key.removeprefix(slot): values.get(choice.key, choice.value) for choice in choices(values, slot)}
    return edited(PRESETS[preset_of(values, slot)].config, picked)


def bounds(values: Values, slot: str) -> list[Bound]:
    """Return the bounds that exist with these choices, with the preset's own values. Raises `UsageError` as above."""
    return _in_slot(bounds_of(chosen(values, slot)), slot)


def bound_values(values: Values, slot: str) -> dict[str, float]:
    """Return the present value of each bound, by its key."""
    return {b.key: b.within(float(values.get(b.key, b.value))) for b in bounds(values, slot)}


def configuration(values: Values, slot: str) -> CorrectionConfig:
    """Return the whole configuration. Raises `UsageError` as above."""
    present = bound_values(values, slot)
    return with_bounds(chosen(values, slot), {b.id: present[b.key] for b in bounds(values, slot)})


def _in_slot(fields: list[F], slot: str) -> list[F]:
    """Give the fields the keys of this slot, and labels that show which slot it is."""
    if slot == FIRST:
        return fields
    return [replace(field, key=slot + field.key, label=f"B: {field.label}") for field in fields]
