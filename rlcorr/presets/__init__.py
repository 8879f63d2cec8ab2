"""Presets: the corrections of public systems for π_old ≠ π_rollout, with the numbers that these systems use.

They are the tables of `presets.toml`. verl's presets have verl's names, the others are named `<system>_<method>`. A
preset may be written differently from the system if the gradient is the same. `source` records remaining differences
and non-default numbers.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import unknown
from rlcorr.rules import RejectionRule


@dataclass(frozen=True)
class Preset:
    """A configuration with its source and the situation in which it fails."""

    system: str
    config: CorrectionConfig
    source: str
    """Version or commit, keys and paper, and what the system does differently from this configuration."""
    fails_when: str
    """The situation, and what happens in it."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Hyperparameters of the loss, if the method sets them."""


def read_presets(text: str) -> dict[str, Preset]:
    """Return the presets of a text of TOML, such as `presets.toml`, whose head explains it.

    Raises `UsageError` for a field with a wrong value, TypeError for an unknown field, KeyError for a missing one.
    """
    tables = tomllib.loads(text)
    return {name: _preset(dict(row), tables["fails_when"]) for name, row in tables["preset"].items()}


def _preset(row: dict[str, Any], situations: Mapping[str, str]) -> Preset:
    rules = tuple(RejectionRule.named(**rule) for rule in row.pop("rollout_rs", ()))
    system, source, fails_when = row.pop("system"), row.pop("source"), situations[row.pop("fails_when")]
    loss = LossConfig(**row.pop("loss", {}))
    return Preset(system, CorrectionConfig(rollout_rs=rules, **row), source, fails_when, loss)


PRESETS = read_presets((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
"""Name → preset. Presets of one system are neighbours, and pickers show this order."""

RANKED = tuple(name for name, entry in PRESETS.items() if not entry.loss.score_centering)
"""Names of the presets whose gradient follows from weights and rejection. Score centering changes the loss instead."""


def preset(name: str) -> CorrectionConfig:
    """Return the configuration with this name. Raises `UsageError`, with the nearest name, if there is none.

    >>> preset("decoupled_token_is").rollout_is_threshold
    2.0
    >>> PRESETS["decoupled_token_is"].fails_when
    'large mismatch: all ratios beyond the cap get the same weight, which biases the gradient'
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].config
