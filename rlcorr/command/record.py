"""`python -m rlcorr record`: train the committed runs again."""

from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from rlcorr.command.train import train_config
from rlcorr.errors import UsageError
from rlcorr.records.recipes import Recipe, find_recipe, install, read_index


@dataclass(frozen=True)
class Record:
    """Make a committed run again, from its entry in runs/index.toml."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of the run, or all: on a machine with a GPU all runs that need one, otherwise all others. Runs that start
    from weights that are not here are made by name."""


def run_record(request: Record) -> int:
    """Train and install the runs, and return the exit code."""
    from rlcorr.train.loop import train

    for recipe in _find_recipes(request.run):
        print(f"{recipe.name}: {recipe.story} Look at: {recipe.look}{recipe.first and f' First: {recipe.first}'}")
        print(f"committed run {install(train(train_config(recipe.options, 'python -m rlcorr record')), recipe)}")
    return 0


def _find_recipes(name: str) -> list[Recipe]:
    """Return the recipes to train. Raises `UsageError` for an unknown name, or if a GPU is needed and missing."""
    here = torch.cuda.is_available()
    if name == "all":
        return [recipe for recipe in read_index().values() if recipe.gpu == here and not recipe.first]
    recipe = find_recipe(name)
    if recipe.gpu and not here:
        raise UsageError(f"{name} needs a GPU, and torch sees none here.")
    return [recipe]
