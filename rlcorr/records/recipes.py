"""The committed runs, and how to record each of them again: with one command, from its entry in `runs/index.toml`.

An index file has a table [shared] and one table per name. The index of the studies has the same format.
"""

import shutil
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError, unknown
from rlcorr.records import runs
from rlcorr.records.disk import content_of
from rlcorr.records.verify import verify


@dataclass(frozen=True)
class Recipe:
    """One entry of the index."""

    name: str
    title: str
    """The name of the run in words."""
    story: str
    """A sentence that describes the run."""
    look: str
    """The part of the run that is worth a look."""
    options: tuple[str, ...]
    """Options of `python -m rlcorr train`."""
    gpu: bool = False
    """True if it needs a GPU; the others are recorded without one."""
    first: str = ""
    """What to do before, if the options alone do not make it."""


def read_entries(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the table [shared] of an index file, and name → entry in the order of the file."""
    if not path.is_file():
        raise UsageError(f"{path} is missing: RLCORR_RUNS must name the folder of the recorded runs.")
    with runs.reading(path, KeyError):
        entries = tomllib.loads(content_of(path).decode())
        return entries.pop("shared"), entries


def expand_runs_folder(options: Iterable[str]) -> tuple[str, ...]:
    """Replace $RLCORR_RUNS in the options of a command by the folder of the runs, as in a run's config.yaml."""
    return tuple(option.replace("$RLCORR_RUNS", str(runs.ROOT)) for option in options)


def read_index() -> dict[str, Recipe]:
    """Return name → recipe, in the order of the file. The options that all runs share are first in each."""
    shared, entries = read_entries(runs.ROOT / "index.toml")
    return {
        name: Recipe(
            name,
            entry["title"],
            entry["story"],
            entry["look"],
            expand_runs_folder(f"{shared['options']} {entry['options']} --run {name}".split()),
            entry.get("gpu", False),
            entry.get("first", ""),
        )
        for name, entry in entries.items()
    }


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a run. Raises `UsageError`, which lists the names, if there is none."""
    if name not in (index := read_index()):
        raise unknown("run in the index", name, index)
    return index[name]


def install(recorded: Path, recipe: Recipe) -> Path:
    """Replace the committed run by a recorded one, with the story of the recipe and with packed metrics.

    Raises `UsageError` if the recorded run is damaged.
    """
    problems = verify(recorded).problems
    if problems:
        raise UsageError(f"{recorded} is damaged, so it was not installed: {problems[0]}")
    runs.pack_metrics(recorded)
    (recorded / "checkpoint" / "trainer.pt").unlink(missing_ok=True)  # nobody goes on with a committed run
    runs.finish_run(recorded, replace(runs.read_manifest(recorded), story=recipe.story))
    committed = runs.ROOT / recipe.name
    if committed.exists():
        shutil.rmtree(committed)
    return recorded.rename(committed)
