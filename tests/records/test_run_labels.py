"""What a committed run is called is what its manifest says: titles, stories and the README's table."""

import re

import pytest

from rlcorr.records import recipes, runs

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
