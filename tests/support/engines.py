"""Several vLLM engines in one process, one after the other: importing vLLM takes three times as long as starting it."""

import gc
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlcorr.command.cli import main
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, log_ratio
from rlcorr.train.config.rollout import Sampling
from rlcorr.train.learner.policy import Policy, engine_weights
from rlcorr.train.rollout.engine import RolloutEngine, to_batch


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


def train_alone(arguments: Sequence[str], local: Path, code: int = 0) -> Path:
    """What `rlcorr train` records with these options until it exits with this code, its engine gone; the run is r."""
    forget_engines()
    with pytest.raises(SystemExit) as ended:
        main(["train", *([] if "--resume" in arguments else ["--run", "r"]), *arguments])
    assert ended.value.code == code
    forget_engines()
    return local / "r"


class Forgetful:
    """An engine that keeps some tensors as they were, or is not sent them at all, as if the checkpoint had none."""

    def __init__(self, engine: RolloutEngine, policy: Policy, forgets: set[str], *, sends: bool = True) -> None:
        self._engine, self._forgets, self._sends = engine, forgets, sends
        self._old = {n: t.clone() for n, t in engine_weights(policy.state_dict(), policy.lm) if n in forgets}
        self.description, self.generate, self.close = engine.description, engine.generate, engine.close
        self.next_log_probs, self.fingerprints = engine.next_log_probs, engine.fingerprints

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        kept = ((name, self._old.get(name, tensor)) for name, tensor in weights)
        self._engine.sync((name, tensor) for name, tensor in kept if self._sends or name not in self._forgets)


@torch.no_grad()
def mismatch(engine: RolloutEngine, policy: Policy, prompts: list[list[int]]) -> float:
    """Return the mean k3 between the engine's log-probs of its own samples and the trainer's. At temperature 1, without
    cuts, and with the engine's experts where it reports them: only the weights and the number format are on trial."""
    samples = engine.generate(prompts, n=1, max_tokens=16, sampling=Sampling())
    batch = to_batch(prompts, samples, next(policy.parameters()).device)
    scores = policy(batch, 1.0, replay=batch.routed_experts is not None)
    d = log_ratio(scores.log_probs, batch.rollout_log_probs, batch.response_mask)
    return float(masked_mean(k3(d), batch.response_mask))
