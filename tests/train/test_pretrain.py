from pathlib import Path

import pytest
from safetensors.torch import load_file

from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.pretrain import pretrain


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(local_runs: Path) -> None:
    first, second = (pretrain(PretrainConfig(run=name, max_steps=2, eval_prompts=2)) for name in "ab")
    one, other = (load_file(path / "checkpoint" / "model.safetensors") for path in (first, second))
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert verify(first).problems == []


@pytest.mark.slow
def test_additions_alone(local_runs: Path) -> None:
    """A mixture of experts that never sees a running sum, and says so."""
    config = PretrainConfig(architecture="qwen3_moe", addition_every=1, max_steps=1, eval_prompts=2)
    manifest = runs.read_manifest(pretrain(config))
    assert manifest.task == "addition"
    assert list(manifest.config["greedy_accuracy"]) == ["addition"]
    assert config.architecture in manifest.story


@pytest.mark.parametrize(
    ("name", "task"), [("warm_start", "addition"), ("warm_start_moe", "addition"), ("warm_start_long", "sorting")]
)
def test_the_shipped_warm_starts_are_what_their_manifests_say(name: str, task: str) -> None:
    """And leave PPO something to do: at most half of the held-out prompts are answered completely."""
    warm_start = runs.ROOT / name
    assert verify(warm_start).problems == []
    assert runs.read_manifest(warm_start).config["greedy_accuracy"][task] <= 0.5
