"""The facts of every system, from `systems.toml`: version, form of its text, and what it does if nothing is set."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.rules import RejectionRule

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
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    presets_of: str = ""
    text_of: str = ""


def _system(row: Mapping[str, Any]) -> System:
    correction = dict(row.get("correction", {}))
    rules = tuple(RejectionRule.named(**rule) for rule in correction.pop("rollout_rs", ()))
    defaults = CorrectionConfig(rollout_rs=rules, **correction), LossConfig(**row.get("loss", {}))
    return System(**(dict(row) | dict(zip(("correction", "loss"), defaults, strict=True))))


FACTS: dict[str, System] = {
    title: _system(row) for title, row in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()
}
"""System → its row."""
