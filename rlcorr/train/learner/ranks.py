"""Several processes, each with a share of the rows: torchrun's ranks, DDP and FSDP2.

Every rank runs the same program and must make the same collective calls in the same order; a forward pass of a sharded
policy is one. `Ranks.size` alone says whether there are several. `torch.distributed.is_initialized()` does not: vLLM
makes a process group of its own in a single process, too.
"""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from rlcorr.errors import UsageError

T = TypeVar("T")

GIVEN = StateDictOptions(full_state_dict=True)
"""Of a state that every rank gives whole."""
FOR_FILES = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Gathers one tensor after the other, on the CPU of the first rank; the others get nothing."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is, and the device it trains on."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this machine
    device: torch.device

    @property
    def main(self) -> bool:
        return self.rank == 0


ALONE = Ranks(0, 1, 0, torch.device("cpu"))
"""One process on the CPU, without a process group."""


def start_ranks() -> Ranks:
    """Where torchrun put this process; alone without it. Raises `UsageError` where a rank has no GPU of its own."""
    rank, size, local_rank = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    ranks = Ranks(rank, max(size, 1), local_rank, _device(local_rank))
    if ranks.size > 1:
        # Objects travel by gloo, tensors on a GPU by nccl.
        dist.init_process_group("cpu:gloo,cuda:nccl" if ranks.device.type == "cuda" else "gloo")
    return ranks


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UsageError(f"local rank {local_rank} has no GPU: this machine has {count}; lower --nproc-per-node.")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def stop_ranks(ranks: Ranks) -> None:
    """No barrier before it: a rank that failed must not wait for the others, or torchrun would never hear of it."""
    if ranks.size > 1 and dist.is_initialized():  # an engine that was launched with us has ended it already
        dist.destroy_process_group()


def gather(ranks: Ranks, value: T) -> list[T]:
    """The objects of all ranks, in rank order; tensors of their GPUs arrive on this rank's GPU."""
    if ranks.size == 1:
        return [value]
    buffer = io.BytesIO()
    torch.save(value, buffer)  # plain pickling would put a tensor of another rank on that rank's GPU
    received: list[Any] = [None] * ranks.size
    dist.all_gather_object(received, buffer.getvalue())
    place = {f"cuda:{other}": str(ranks.device) for other in range(ranks.size)}
    return [torch.load(io.BytesIO(content), map_location=place, weights_only=False) for content in received]


def sum_over_ranks(ranks: Ranks, tensor: Tensor) -> Tensor:
    if ranks.size == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def wrap(policy: nn.Module, ranks: Ranks, sharding: Literal["ddp", "fsdp"]) -> nn.Module:
    """The module to call forward on. All its parameters must take part in every loss, on every rank.

    ddp: a wrapper that averages gradients. fsdp: the policy itself, changed in place: parameters become shards, so
    optimizers are made afterwards; decoder layers are gathered one at a time. Gradients are averages over ranks.
    """
    if ranks.size == 1:
        return policy
    if sharding == "ddp":
        return DistributedDataParallel(policy)
    # FSDP warns where a module returns views, as ours does: nothing here writes into scores in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for module in [*decoder_layers(policy), policy]:
        # By default the root stays whole after a forward pass, and a state loaded then would not be seen by the next.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    return policy


def decoder_layers(policy: nn.Module) -> list[nn.Module]:
    """Those of the language model, and of a critic's own trunk."""
    stacks = [m for name, m in policy.named_modules() if isinstance(m, nn.ModuleList) and name.endswith("layers")]
    return [layer for stack in stacks for layer in stack]


@contextmanager
def accumulate(module: nn.Module, last: bool) -> Iterator[None]:
    """Forward and backward of one micro-batch: gradients add up locally, and travel with the last one only."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def clip_gradients(module: nn.Module, max_norm: float) -> Tensor:
    """Clip in place; returns the norm before, of the whole gradient."""
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    return whole(norm)


def state_here(module: nn.Module) -> dict[str, Tensor]:
    """Under the policy's own names: whole tensors, or this rank's shards. They share memory with the module."""
    return get_model_state_dict(module)  # pyright: ignore[reportReturnType]


def whole(tensor: Tensor) -> Tensor:
    """Gathered from all shards, which every rank must ask for; a tensor that is not sharded as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """Whole tensors on the first rank's CPU, under the policy's own names, and nothing on the others. Those that are
    not sharded and lie on the CPU share memory with the module."""
    return get_model_state_dict(module, options=FOR_FILES)  # pyright: ignore[reportReturnType]


def full_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same of the optimizer, by the names of parameters: any number of ranks can load it."""
    return dict(get_optimizer_state_dict(module, optimizer, options=FOR_FILES))


def load_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, policy: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """The inverse of `full_state` and `full_optimizer_state`; every rank gives the whole. The optimizer may keep the
    very tensors of `state`."""
    set_model_state_dict(module, dict(policy), options=GIVEN)
    set_optimizer_state_dict(module, optimizer, dict(state), options=GIVEN)
