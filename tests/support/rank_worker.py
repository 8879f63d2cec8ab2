"""What each rank of test_ranks.py runs: two optimizer steps on uneven work, with a checkpoint between them, sharded in
both ways; at last rank 1 fails while rank 0 waits for it.

`python -m torch.distributed.run --standalone --nproc-per-node 2 tests/support/rank_worker.py FOLDER`
"""

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from learners import RESPONSES, sampled_batch, small_policy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rlcorr.train.learner import policy as policy_module
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.ranks import (
    Ranks,
    accumulate,
    clip_gradients,
    full_optimizer_state,
    full_tensor,
    gather,
    load_state,
    local_state,
    start_ranks,
    stop_ranks,
    sum_over_ranks,
    wrap,
)
from rlcorr.train.learner.token_log_probs import token_log_probs

ROWS = range(6)
TOKENS = sum(RESPONSES)

# Rank 0 has three micro-batches; rank 1 has one, and two in which every token is masked.
MICROBATCHES = [([0, 1], 1), ([2], 1), ([3, 5], 1)], [([4], 1), ([0], 0), ([0], 0)]
MAX_NORM = 0.5  # far below the gradient's norm: every step clips


def policy_of(seed: int) -> Policy:
    """Two layers and a critic; in float64, so that only a wrong sum can differ, not its order."""
    return small_policy(critic=True, layers=2, seed=seed).double()


def adam(policy: nn.Module) -> torch.optim.AdamW:
    """A large epsilon: Adam's first step is otherwise the sign of the gradient, of rounding where it is zero."""
    return torch.optim.AdamW(policy.parameters(), lr=0.01, eps=1e-3, weight_decay=0.0)


def loss_of(module: nn.Module, rows: Sequence[int], weight: float = 1) -> Tensor:
    """The part of these rows in the mean over all tokens of −log π + (V − 1)²."""
    batch = sampled_batch().rows(torch.tensor(rows))
    scores: Any = module(batch, 1.0)
    of_tokens = (scores.values - 1) ** 2 - scores.log_probs
    return weight * (of_tokens * batch.response_mask).sum() / TOKENS


def shared_step(module: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> dict[str, Any]:
    """One step of all ranks together: loss, whole gradient, norm, and the state afterwards."""
    optimizer.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    mine = MICROBATCHES[ranks.rank]
    for number, (rows, weight) in enumerate(mine, 1):
        with accumulate(module, last=number == len(mine)):
            loss = loss_of(module, rows, weight)
            (loss * ranks.size).backward()
        total += loss.detach()
    gradients = {name.removeprefix("module."): whole_gradient(p) for name, p in module.named_parameters()}
    norm = clip_gradients(module, MAX_NORM)
    optimizer.step()
    state = {name: full_tensor(tensor).clone() for name, tensor in local_state(module).items()}
    return {"loss": sum_over_ranks(ranks, total), "gradients": gradients, "norm": norm, "state": state}


def whole_gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return full_tensor(parameter.grad).clone()


@torch.no_grad()
def log_probs(module: nn.Module) -> Tensor:
    batch = sampled_batch()
    scores: Any = module(batch, 1.0)
    return torch.where(batch.response_mask, scores.log_probs, 0)


def resumed(
    checkpoint: tuple[dict[str, Tensor], dict[str, Any]], ranks: Ranks, sharding: Literal["ddp", "fsdp"]
) -> dict[str, Any]:
    """The second step of a policy that began elsewhere and then loaded the state after the first."""
    policy = policy_of(seed=1)
    module = wrap(policy, ranks, sharding)
    optimizer = adam(policy)
    log_probs(module)  # fsdp may keep what a forward pass has gathered: loading must not leave it in use
    load_state(module, optimizer, *copy.deepcopy(checkpoint))
    return {"log_probs": log_probs(module), **shared_step(module, optimizer, ranks)}


def work(ranks: Ranks, folder: Path, sharding: Literal["ddp", "fsdp"]) -> dict[str, Any]:
    policy = policy_of(seed=0)
    module = wrap(policy, ranks, sharding)
    optimizer = adam(policy)
    first = shared_step(module, optimizer, ranks)
    optimizer_state = gather(ranks, full_optimizer_state(module, optimizer))[0]
    tensor = torch.tensor([1.0, 10.0]) * (ranks.rank + 1)
    return {
        "gathered": gather(ranks, {"rank": ranks.rank, "rows": [torch.arange(ranks.rank + 1)] * ranks.rank}),
        "summed": (sum_over_ranks(ranks, tensor), tensor),
        "sharded": sum(isinstance(p, DTensor) for p in policy.parameters()),
        "gathered_alone": sum(isinstance(m, FSDPModule) for m in policy.modules()),
        "first": first,
        "optimizer": optimizer_state,
        "from_alone": resumed(torch.load(folder / "alone.pt"), ranks, sharding),
    }


@contextmanager
def started() -> Iterator[Ranks]:
    ranks = start_ranks()
    try:
        yield ranks
    finally:
        stop_ranks(ranks)


SHARDINGS: tuple[Literal["ddp", "fsdp"], ...] = ("ddp", "fsdp")


def main(folder: Path) -> None:
    # Two tokens at a time, so that the backward pass computes chunks of the head again, whose weights may be sharded.
    policy_module.token_log_probs = partial(token_log_probs, logits_at_once=22)
    with started() as ranks:
        for sharding in SHARDINGS:
            torch.save(work(ranks, folder, sharding), folder / f"{sharding}_{ranks.rank}.pt")
        gather(ranks, None)  # both have written
        if ranks.rank == 1:
            raise RuntimeError("rank 1 gives up")
        gather(ranks, "rank 0 waits")
        (folder / "went_on").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
