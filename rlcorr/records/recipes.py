"""The committed runs: each is made again by one command, from its entry in `runs/index.toml`."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.index import entry_named, in_runs, read_entries
from rlcorr.records.verify import verify


@dataclass(frozen=True)
class Recipe:
    """One entry of the index."""

    name: str
    story: str
    """What the run is, in one sentence."""
    look: str
    """What to look at."""
    options: tuple[str, ...]
    """Of `python -m rlcorr train`."""
    gpu: bool = False
    """Whether it needs a GPU; the others are recorded without one."""


def read_index() -> dict[str, Recipe]:
    """Name → recipe, in the order of the file. Options that all runs share stand first in each."""
    shared, entries = read_entries(runs.ROOT / "index.toml")
    return {
        name: Recipe(
            name,
            entry["story"],
            entry["look"],
            in_runs(f"{shared['options']} {entry['options']} --run {name}".split()),
            entry.get("gpu", False),
        )
        for name, entry in entries.items()
    }


def sketched() -> list[str]:
    """Names of the entries that are recorded here, and have score sketches."""
    return [name for name in read_index() if runs.list_sketches(runs.ROOT / name)]


def find_recipe(name: str) -> Recipe:
    """Raises `UsageError` naming what exists."""
    return entry_named("run in the index", name, read_index())


def install(recorded: Path, recipe: Recipe) -> Path:
    """Put a recorded run in the place of the committed one, with its story and with its metrics packed. Raises
    `UsageError` for a damaged one."""
    problems = verify(recorded).problems
    if problems:
        raise UsageError(f"{recorded} is damaged and stays where it is: {problems[0]}")
    runs.pack_metrics(recorded)
    runs.finish_run(recorded, replace(runs.read_manifest(recorded), story=recipe.story))
    place = runs.ROOT / recipe.name
    if place.exists():
        shutil.rmtree(place)
    return recorded.rename(place)
