"""The facts of every system, from `systems.toml`: version, form of its text, and what it does if nothing is set."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.rules import RejectionRule


@dataclass(frozen=True)
class Key:
    """A key that is read."""

    meaning: str
    condition: str = ""
    """Another key that must be on, or "key=value"; empty: the key always counts."""


_TABLE = Path(__file__).parent.parent / "systems.toml"


@dataclass(frozen=True)
class System:
    """A row of the table; its comment explains the fields."""

    version: str = ""
    package: str | None = None
    comment: str = ""
    centering: str | None = None
    centering_elsewhere: str = ""
    form: str = ""
    under: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    line: str | None = None
    refuses: Mapping[str, str | bool] = field(default_factory=dict)
    nearest: Mapping[str, str] = field(default_factory=dict)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    presets_of: str = ""
    text_of: str = ""
    block: str = ""
    keys: Mapping[str, Key] = field(default_factory=dict)
    retired: Mapping[str, str] = field(default_factory=dict)


def _system(row: dict[str, Any]) -> System:
    correction = dict(row.get("correction", {}))
    rules = tuple(RejectionRule.named(**rule) for rule in correction.pop("rollout_rs", ()))
    read: dict[str, Any] = {
        "correction": CorrectionConfig(rollout_rs=rules, **correction),
        "loss": LossConfig(**row.get("loss", {})),
        "keys": {
            name: Key(key) if isinstance(key, str) else Key(key["is"], key["if"])
            for name, key in row.get("keys", {}).items()
        },
    }
    return System(**(row | read))


FACTS: dict[str, System] = {
    title: _system(row) for title, row in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()
}
"""System → its row."""
