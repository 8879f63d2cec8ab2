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


@dataclass(frozen=True)
class Dump:
    """A file with both log-probs.

    A system is recognised if all of `columns` are there and, if `one_of` is not empty, one of its names.
    """

    columns: frozenset[str]
    one_of: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Column → our name, for columns whose name would be misunderstood."""
    mask_over_dummy: str = ""
    """The mask over prompt and response. The first token has no log-prob, because nothing precedes it: a dummy takes
    its place, and the mask may include the dummy."""
    row_mask: str = ""
    """A column with a number per row. If it is 0, no token of the row counts."""


@dataclass(frozen=True)
class WithoutPair:
    """A file without one of the two log-probs, recognised by its columns."""

    columns: frozenset[str]
    what: str
    """A description of the file. It ends the sentence "It looks like …"."""


_FILES = {"dump": Dump, "without_pair": WithoutPair}
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
    fields: dict[str, Any] = field(default_factory=dict)
    dump: Dump | None = None
    without_pair: WithoutPair | None = None
    from_pickle: str = ""
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    presets_of: str = ""
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
    files = row.pop("files", {})
    files |= {name: _FILES[name](**_sets(files[name])) for name in _FILES if name in files}
    return System(**(row | read | files | {"fields": _value(row.get("fields", {}))}))


def _sets(row: dict[str, Any]) -> dict[str, Any]:
    return {name: frozenset(value) if isinstance(value, list) else value for name, value in row.items()}


def _value(value: Any) -> Any:
    """Return a value with None for "null", which TOML lacks, and with tuples."""
    if isinstance(value, dict):
        return {name: _value(inner) for name, inner in value.items()}
    return tuple(map(_value, value)) if isinstance(value, list) else None if value == "null" else value


FACTS: dict[str, System] = {
    title: _system(row) for title, row in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()
}
"""System → its row."""
