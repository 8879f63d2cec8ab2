import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_config

from rlcorr.command import record
from rlcorr.command.cli import run_verb
from rlcorr.command.train import train_config
from rlcorr.errors import UsageError
from rlcorr.records import recipes, runs
from rlcorr.records.recipes import Recipe
from rlcorr.records.verify import verify
from rlcorr.train.loop import train


@pytest.fixture
def weights_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some recipes start from weights that have to be made first."""
    monkeypatch.setattr("rlcorr.train.config.training.check_model", lambda name: None)


@pytest.mark.usefixtures("weights_made")
@pytest.mark.parametrize("name", recipes.read_index())
def test_every_recipe_is_a_command(name: str) -> None:
    recipe = recipes.find_recipe(name)
    config = train_config(recipe.options, "test")
    assert config.run == name
    assert not config.save_model
    assert recipe.story.endswith(".")
    assert recipe.look.endswith(".")
    assert recipe.title[0] in "8" or recipe.title[0].isupper()


@pytest.mark.usefixtures("weights_made")
@pytest.mark.parametrize("name", [recipe.name for recipe in recipes.read_index().values() if not recipe.gpu])
def test_a_committed_run_is_what_its_recipe_makes(name: str) -> None:
    """Check a committed run: configuration, story, hashes, and a sketch of the last step if the recipe asks for one."""
    run = runs.ROOT / name
    manifest, recipe = runs.read_manifest(run), recipes.find_recipe(name)
    assert manifest.story == recipe.story
    assert verify(run).problems == []
    recorded = train_config(["--config", str(run / "config.yaml")], "test")
    assert recorded == train_config(list(recipe.options), "test")
    assert (recorded.steps in runs.list_sketches(run)) == (recorded.sketch.every > 0)


def test_every_committed_run_has_a_recipe() -> None:
    """Check that every run has a recipe, and every recipe a run, except those that need a GPU."""
    committed = {name for name, path in runs.list_runs().items() if path.parent == runs.ROOT}
    index = recipes.read_index()
    assert committed <= set(index)
    assert {name for name in index if name not in committed} <= {name for name, recipe in index.items() if recipe.gpu}


def test_a_run_that_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="gpu_smol_bf16 needs a GPU, and torch sees none here"):
        run_verb(["record", "gpu_smol_bf16"])


def test_a_run_whose_weights_are_made_first_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"no model at .*smol_policy_bf16: it must hold config\.json"):
        run_verb(["record", "smol_sketch_bf16"])
    assert "First: make the weights, as runs/study/smol_sketches.md says." in capsys.readouterr().out
    assert "smol_sketch_bf16" not in {recipe.name for recipe in record._find_recipes("all")}


def small(model: Path, name: str, *, gpu: bool = False) -> Recipe:
    options = f"--model {model} --rollout.engine transformers --rollout.dtype float32 --no-tensorboard --no-save-model "
    options += f"--steps 1 --prompts-per-step 8 --eval-prompts 8 --run {name}"
    return Recipe(name, "A", "A story.", "Nothing.", tuple(options.split()), gpu)


def test_all_runs_are_made_that_this_machine_can_make(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "ROOT", local_runs.parent)
    index = {"small": small(tiny_model, "small"), "g": small(tiny_model, "g", gpu=True)}
    monkeypatch.setattr(record, "read_index", lambda: index)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run_verb(["record", "all"])
    assert verify(local_runs.parent / "small").problems == []
    assert not (local_runs.parent / "g").exists()


def test_a_run_takes_its_place_unless_it_is_damaged(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "ROOT", local_runs.parent)
    recipe = Recipe("tiny", "Tiny", "A story.", "Nothing.", ())
    first = recipes.install(train(tiny_config(tiny_model)), recipe)
    assert first == local_runs.parent / "tiny"
    assert runs.read_manifest(first).story == "A story."
    assert verify(first).problems == []
    assert "metrics.jsonl.gz" in runs.read_manifest(first).files
    assert [row["step"] for row in runs.read_metrics(first)] == [1, 2]
    again = train(tiny_config(tiny_model, seed=1, checkpoint_every=1))
    assert (again / "checkpoint" / "trainer.pt").is_file()
    second = recipes.install(again, replace(recipe, story="Another."))
    assert "checkpoint/trainer.pt" not in runs.read_manifest(second).files
    assert second == first
    assert runs.read_manifest(second).seed == 1
    assert not (local_runs / "tiny").exists()
    damaged = train(tiny_config(tiny_model))
    (damaged / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="is damaged, so it was not installed"):
        recipes.install(damaged, recipe)
    assert verify(second).problems == []


# --- What a committed run is called is what its manifest says: titles, stories and the README's table ---


MODELS = ("warm_start", "warm_start_moe", "warm_start_long")
COMMITTED = [name for name, path in runs.list_runs().items() if path.parent == runs.ROOT and name not in MODELS]
WORDS = {"four": 4, "six": 6, "two": 2}


def manifest_of(name: str) -> runs.RunManifest:
    return runs.read_manifest(runs.ROOT / name)


def formats(manifest: runs.RunManifest) -> dict[str, str]:
    """Return part → number format of the engine and of the trainer. `auto` and `none` are the engine's own format."""
    settings, rollout = manifest.engine_settings, manifest.config.get("rollout", {})
    weights = "fp8" if settings.get("quantization") == "fp8" else rollout.get("weights") or "none"
    parts = {"engine": settings["dtype"], "trainer": manifest.trainer_dtype}
    return parts | {"cache": settings["kv_cache_dtype"], "weights": weights}


@pytest.mark.parametrize("name", COMMITTED)
def test_a_title_and_a_story_say_what_the_manifest_says(name: str) -> None:
    """Each of these words, if it is there, is true; and a cache, rounded weights and a GPU are not left unsaid."""
    entry, manifest = recipes.find_recipe(name), manifest_of(name)
    said, parts = f"{entry.title}. {entry.story}", formats(manifest)
    assert ("GPU" in said) == ("NVIDIA" in manifest.hardware)
    assert ("cache" in entry.title) == ("cache" in said) == (parts["cache"] != "auto")
    for cache in re.findall(r"cache[^.]*\((e\dm\d)\)", said):
        assert {"fp8": "e4m3", "fp8_e5m2": "e5m2"}[parts["cache"]] == cache
    rounded = re.search(r"[Ww]eights (?:and activations )?(?:in 8 bits|in int8|in fp8|rounded)", said)
    assert bool(rounded) == (parts["weights"] != "none")
    for pattern in (r"(\w+) on both sides", r"[Bb]oth sides in (\w+)", r"engine and trainer (?:compute )?in (\w+)"):
        for dtype in re.findall(pattern, said):
            assert (parts["engine"], parts["trainer"]) == (dtype, dtype)
    for dtype in re.findall(r"engine in (\w+)", said):
        assert parts["engine"] == dtype
    for dtype in re.findall(r"trainer (?:computes )?in (\w+\d\d)\b", said):
        assert parts["trainer"] == dtype
    ages = re.findall(rf"({'|'.join(WORDS)}) (?:updates|steps|versions)", said)
    assert {WORDS[word] for word in ages} <= {manifest.config["rollout"]["staleness"]}


def test_the_table_of_the_readme_has_the_formats_of_the_manifests() -> None:
    """A cell has the engine's format, what else of it is rounded, and the trainer's format."""
    rows = re.findall(r"^\| `(\w*smol_\w+)` \| ([^|]+); (\w+) \|", (runs.ROOT / "README.md").read_text(), re.MULTILINE)
    assert {name for name, _, _ in rows} == {name for name in COMMITTED if "smol_" in name}
    for name, engine, trainer in rows:
        parts = formats(manifest_of(name))
        assert trainer == parts["trainer"], name
        assert engine.split(", ")[0] == parts["engine"], name
        assert ("cache" in engine) == (parts["cache"] != "auto"), name
        assert ("weights" in engine) == (parts["weights"] != "none"), name
