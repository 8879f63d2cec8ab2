"""The index files beside the runs: a table [shared], and one table per name."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlcorr.errors import unknown
from rlcorr.records import runs

T = TypeVar("T")


def read_entries(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all entries share, and name → entry, in the order of the file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return entries.pop("shared"), entries


def entry_named(kind: str, name: str, index: Mapping[str, T]) -> T:
    """Raises `UsageError` naming what exists."""
    if name not in index:
        raise unknown(kind, name, index)
    return index[name]


def in_runs(options: Iterable[str]) -> tuple[str, ...]:
    """$RLCORR_RUNS in the words of a command stands for the folder of the runs, as in a run's config.yaml."""
    return tuple(word.replace("$RLCORR_RUNS", str(runs.ROOT)) for word in options)
