"""Several vLLM engines in one process, one after the other: importing vLLM takes three times as long as starting it."""

import gc
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from rlcorr.command.cli import main
from rlcorr.train.learner.policy import Policy, engine_weights
from rlcorr.train.rollout.engine import RolloutEngine


def forget_engines() -> None:
    """vLLM keeps global state, which a dying engine takes along, and which a dense one makes without a place for
    experts: so earlier ones must be gone before another starts."""
    from vllm.distributed import parallel_state as vllm_state

    if not vllm_state.model_parallel_is_initialized():
        return
    gc.unfreeze()  # an engine freezes what is there when it starts, so also one before it that nobody uses any more
    gc.collect()
    vllm_state.destroy_model_parallel()  # vLLM's own cleaning up would search the whole heap for garbage once more
    vllm_state.destroy_distributed_environment()
    for handler in logging.getLogger("vllm").handlers:
        handler.close()


def train_alone(arguments: Sequence[str], local: Path) -> Path:
    """What `rlcorr train` records with these options, its engine gone; the run must be called r."""
    forget_engines()
    with pytest.raises(SystemExit) as ended:
        main(["train", "--run", "r", *arguments])
    assert ended.value.code == 0
    forget_engines()
    return local / "r"


class Forgetful:
    """An engine that keeps some tensors as they were."""

    def __init__(self, engine: RolloutEngine, policy: Policy, forgets: set[str]) -> None:
        self._engine = engine
        self._old = {n: t.clone() for n, t in engine_weights(policy.state_dict(), policy.lm) if n in forgets}
        self.description, self.generate = engine.description, engine.generate

    def sync(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        self._engine.sync([(name, self._old.get(name, tensor)) for name, tensor in weights])
