"""Every sync of a short training with vLLM in float32, for heads and experts of every kind."""

import sys
from pathlib import Path

import pytest
from engines import train_alone
from safetensors.torch import load_file
from tiny import save_random

from rlcorr.records import runs
from rlcorr.train.pretrain import new_lm, new_moe_lm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.usefixtures("rewarding"),
    pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform"),
]

NEW = {"dense": new_lm, "moe": new_moe_lm}


@pytest.mark.parametrize(("kind", "tied"), [("dense", False), ("moe", True), ("moe", False)])
def test_the_engine_has_the_weights_of_every_step(kind: str, tied: bool, tmp_path: Path, local_runs: Path) -> None:
    """Rewards for long answers move all weights. The dense tied model is the warm start of test_vllm.py."""
    model = save_random(tmp_path / "model", NEW[kind], tied=tied)
    options = ["--steps", "4", "--prompts-per-step", "32", "--rollout.dtype", "float32"]
    options += ["--optim.learning-rate", "1e-2", "--rollout.engine", "vllm", "--eval-prompts", "8"]
    replay = ["--rollout.router-replay"] if kind == "moe" else []
    run = train_alone(["--model", str(model), *options, *replay], local_runs)
    k3 = [row["rollout_corr/k3_kl"] for row in runs.read_metrics(run)]
    assert len(k3) == 4
    assert max(k3) <= 1e-7
    before, after = (load_file(path / "model.safetensors") for path in (model, run / "checkpoint"))
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    assert (after[head] - before[head]).abs().max() > 0.01
