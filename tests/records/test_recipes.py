from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_config

from rlcorr.command.train_options import train_config
from rlcorr.errors import UsageError
from rlcorr.records import recipes, runs
from rlcorr.records.recipes import Recipe
from rlcorr.records.verify import verify
from rlcorr.train.loop import train


@pytest.mark.parametrize("name", recipes.read_index())
def test_every_recipe_is_a_command(name: str) -> None:
    recipe = recipes.find_recipe(name)
    config = train_config(list(recipe.options), "test")
    assert config.run == name
    assert not config.save_model
    assert recipe.story.endswith(".")
    assert recipe.look.endswith(".")


@pytest.mark.parametrize("name", recipes.read_index())
def test_a_committed_run_is_what_its_recipe_makes(name: str) -> None:
    """Its configuration and its story; it verifies, and its last step has a sketch if it asks for sketches."""
    run = runs.ROOT / name
    manifest, recipe = runs.read_manifest(run), recipes.find_recipe(name)
    assert manifest.story == recipe.story
    assert verify(run).problems == []
    recorded = train_config(["--config", str(run / "config.yaml")], "test")
    assert recorded == train_config(list(recipe.options), "test")
    assert (str(recorded.steps) in manifest.sketches) == (recorded.sketch.every > 0)


def test_every_committed_run_has_a_recipe() -> None:
    committed = {name for name, path in runs.list_runs().items() if path.parent == runs.ROOT}
    assert committed == set(recipes.read_index())


def test_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="control_fp32"):
        recipes.find_recipe("control_fp23")


def test_a_run_takes_its_place(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROOT", local_runs.parent)
    recipe = Recipe("tiny", "A story.", "Nothing.", ())
    first = recipes.install(train(tiny_config(tiny_model)), recipe)
    assert first == local_runs.parent / "tiny"
    assert runs.read_manifest(first).story == "A story."
    second = recipes.install(train(tiny_config(tiny_model, seed=1)), replace(recipe, story="Another."))
    assert second == first
    assert runs.read_manifest(second).seed == 1
    assert not (local_runs / "tiny").exists()


def test_a_damaged_run_replaces_nothing(tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROOT", local_runs.parent)
    recipe = Recipe("tiny", "A story.", "Nothing.", ())
    good = recipes.install(train(tiny_config(tiny_model)), recipe)
    recorded = train(tiny_config(tiny_model))
    (recorded / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="is damaged and stays where it is"):
        recipes.install(recorded, recipe)
    assert verify(good).problems == []
