"""`python -m rlcorr record`: train the committed runs again."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import tyro

from rlcorr.command.train import train_config
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.recipes import Recipe, find_recipe, install, read_index
from rlcorr.train.config.learning import SketchConfig
from rlcorr.train.config.training import TrainConfig


@dataclass(frozen=True)
class Record:
    """Make a committed run again, from its entry in runs/index.toml."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of the run, or all: on a machine with a GPU all runs that need one, otherwise all others."""


def run_record(request: Record) -> int:
    """Train and install the runs, and return the exit code."""
    from rlcorr.train.loop import train

    recipes = _find_recipes(request.run)
    if recipes[0].gpu:
        rehearse(recipes)
    for recipe in recipes:
        print(f"{recipe.name}: {recipe.story} Look at: {recipe.look}")
        print(f"committed run {install(train(_config(recipe)), recipe)}")
    return 0


def _find_recipes(name: str) -> list[Recipe]:
    """Return the recipes to train. Raises `UsageError` for an unknown name, or if a GPU is needed and missing."""
    here = torch.cuda.is_available()
    if name == "all":
        return [recipe for recipe in read_index().values() if recipe.gpu == here]
    recipe = find_recipe(name)
    if recipe.gpu and not here:
        raise UsageError(f"{name} needs a GPU, and torch sees none here.")
    return [recipe]


def rehearse(recipes: Sequence[Recipe]) -> None:
    """Train and delete one small step of each recipe, so that errors appear before the first long training run."""
    from rlcorr.train.loop import train

    for recipe in recipes:
        config = replace(_config(recipe), steps=1, prompts_per_step=32, eval_prompts=32, sketch=SketchConfig())
        config = replace(config, run=runs.free_name("rehearsal"))
        print(f"rehearsal of {recipe.name}")
        shutil.rmtree(train(config))


def _config(recipe: Recipe) -> TrainConfig:
    return train_config(recipe.options, "python -m rlcorr record")
