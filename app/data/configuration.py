"""The configuration that a visitor has chosen: a preset, changed choices, and bounds.

`Values` has what differs from the default, by the keys of the address. Those of B, on Compare, begin with `SECOND`.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, get_args

from data.bounds import Bound, bounds_of, with_bounds
from rlcorr import PRESETS, CorrectionConfig, RejectionRule
from rlcorr.config import Denominator
from rlcorr.divergences import DIVERGENCES
from rlcorr.errors import UsageError
from rlcorr.rules import RULE_NAMES
from rlcorr.teaching.glossary import define
from rlcorr.weights import LEVELS, WeightMode

LEVEL = (
    "The weight of a token is its own ratio, the product of the ratios of its answer, their geometric mean, or the "
    "product of the ratios up to this token (prefix). With none, every token has weight 1."
)
NONE = "none"
Values = Mapping[str, Any]
FIRST, SECOND = "", "b."
"""The slots: the configuration that all views share (A), and B, which it is compared with."""
DEFAULT_PRESET, SECOND_PRESET = "decoupled_token_is", "decoupled_geo_rs_token_tis"
PRESET_KEYS = {FIRST: ("preset", DEFAULT_PRESET), SECOND: ("preset_b", SECOND_PRESET)}
"""Slot → key of its preset, and the default."""


@dataclass(frozen=True)
class Choice:
    """One setting of a configuration that is picked from a list: its key in the address and the preset's value.

    The value of a choice of several is a list.
    """

    key: str
    label: str
    value: str | list[str]
    options: tuple[str, ...]
    help: str

    @property
    def several(self) -> bool:
        return isinstance(self.value, list)


def choices_of(config: CorrectionConfig) -> list[Choice]:
    """Return the choices, with the configuration's own values."""
    mean = "one" if config.rollout_is_batch_normalize else "as it is"
    return [
        Choice("level", "Weights", config.rollout_is or NONE, (NONE, *LEVELS), LEVEL),
        Choice(
            "mode",
            "Outside the thresholds",
            config.rollout_is_mode,
            get_args(WeightMode),
            "A weight outside its thresholds becomes the threshold (truncate), or 0 (mask).",
        ),
        Choice(
            "rules",
            "Rejection rules",
            [rule.name for rule in config.rollout_rs],
            tuple(RULE_NAMES),
            "Rules that reject tokens or whole answers if their divergence is outside the thresholds.",
        ),
        Choice("denominator", "Divide by", config.denominator, get_args(Denominator), define("denominator")),
        Choice(
            "normalise",
            "Mean weight",
            mean,
            ("as it is", "one"),
            "Divide the weights by their mean over the kept tokens, or leave them as they are.",
        ),
    ]


def edited(config: CorrectionConfig, chosen: Mapping[str, Any]) -> CorrectionConfig:
    """Return the configuration with these choices, by their keys. Raises `UsageError` if they contradict each other."""
    present = {rule.name: rule for rule in config.rollout_rs}
    return replace(
        config,
        rollout_is=None if chosen["level"] == NONE else chosen["level"],
        rollout_is_mode=chosen["mode"],
        rollout_rs=tuple(present.get(name) or usual_rule(name) for name in chosen["rules"]),
        denominator=chosen["denominator"],
        rollout_is_batch_normalize=chosen["normalise"] == "one",
    )


def usual_rule(name: str) -> RejectionRule:
    """Return a rule with bounds to start from, taken from public presets with such a rule if there are any."""
    _, divergence, reduce, _ = RULE_NAMES[name]
    lower, upper = RATIO_BOUNDS[reduce] if divergence == "k1" else DIVERGENCES[divergence].usual
    if reduce == "sum" and DIVERGENCES[divergence].neutral == 0:
        lower, upper = (None if lower is None else 10 * lower), 10 * upper
    if reduce == "min":
        upper = math.inf
    return RejectionRule.named(name, lower=lower, upper=upper)


RATIO_BOUNDS: dict[str | None, tuple[float | None, float]] = {
    None: (0.5, 2.0), "sum": (0.5, 2.0), "mean": (0.999, 1.001), "max": (None, 100.0), "min": (1e-4, math.inf),
}  # fmt: skip

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


@lru_cache(8)
def values_of(config: CorrectionConfig, *, score_centering: bool, system: str) -> dict[str, Any] | None:
    """Return the fewest values with which the page shows this configuration, a preset of this system if there is one.

    Return None if it needs a bound or a loss that the page has no control for.
    """
    options, wanted = [], {b.id: b.value for b in bounds_of(config)}
    for name, preset in PRESETS.items():
        if preset.loss.score_centering != score_centering:
            continue
        theirs = {choice.key: choice.value for choice in choices_of(preset.config)}
        picked = {choice.key: choice.value for choice in choices_of(config) if choice.value != theirs[choice.key]}
        values = {"preset": name} | picked
        with suppress(UsageError):
            values |= {b.key: wanted.get(b.id, b.value) for b in bounds(values, FIRST)}
            if configuration(values, FIRST) == config:
                options.append((len(picked), preset.system != system, values))
    return min(options, key=lambda option: option[:2], default=(0, True, None))[2]


def _in_slot(fields: list[F], slot: str) -> list[F]:
    """Give the fields the keys of this slot, and labels that show which slot it is."""
    if slot == FIRST:
        return fields
    return [replace(field, key=slot + field.key, label=f"B: {field.label}") for field in fields]
