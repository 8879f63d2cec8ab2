"""Several processes, each with a share of the rows: torchrun's ranks, DDP and FSDP2.

Every rank runs the same program and must make the same collective calls in the same order. A forward pass of a sharded
policy is a collective call. Use only `Ranks.size` to check whether there are several ranks:
`torch.distributed.is_initialized()` is true in a single process as well, because vLLM makes its own process group.
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

T = TypeVar("T")

FOR_LOADING = StateDictOptions(full_state_dict=True)
"""Options for loading a state of which every rank has the full tensors."""
FOR_FILES = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Options for saving: gather one tensor after the other on the CPU of the first rank; the other ranks get nothing."""


@dataclass(frozen=True)
class Ranks:
    """The number of this process, how many there are, and the device that this process trains on."""

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
    """Return this process's place among torchrun's ranks, and join their group; without torchrun there is one rank."""
    rank, size, local_rank = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    ranks = Ranks(rank, max(size, 1), local_rank, _device(local_rank))
    if ranks.size > 1:
        # gloo sends objects, nccl sends tensors on a GPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if ranks.device.type == "cuda" else "gloo")
    return ranks


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def stop_ranks(ranks: Ranks) -> None:
    """Leave the process group, without a barrier: a rank that failed must end at once, or torchrun would not notice."""
    if ranks.size > 1 and dist.is_initialized():  # an engine that shares the ranks may have ended the group already
        dist.destroy_process_group()


def gather(ranks: Ranks, value: T) -> list[T]:
    """Return the objects of all ranks, in rank order. Tensors from other ranks' GPUs arrive on this rank's GPU."""
    if ranks.size == 1:
        return [value]
    buffer = io.BytesIO()
    torch.save(value, buffer)  # plain pickling would put a tensor of another rank on that rank's GPU
    received: list[Any] = [None] * ranks.size
    dist.all_gather_object(received, buffer.getvalue())
    devices = {f"cuda:{other}": str(ranks.device) for other in range(ranks.size)}
    return [torch.load(io.BytesIO(content), map_location=devices, weights_only=False) for content in received]


def sum_over_ranks(ranks: Ranks, tensor: Tensor) -> Tensor:
    if ranks.size == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def wrap(policy: nn.Module, ranks: Ranks, sharding: Literal["ddp", "fsdp"]) -> nn.Module:
    """Return the module whose forward must be called. All its parameters must take part in every loss, on every rank.

    ddp: a wrapper of the policy. fsdp: the policy itself, changed in place. Its parameters become shards, so make the
    optimizer afterwards; its decoder layers are gathered one at a time. In both cases ranks average their gradients.
    """
    if ranks.size == 1:
        return policy
    if sharding == "ddp":
        return DistributedDataParallel(policy)
    # FSDP warns if a module returns views. Ours does, which is safe: nothing here writes into scores in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for module in [*decoder_layers(policy), policy]:
        # By default the root module stays gathered after a forward pass, and the next pass would ignore a state that
        # was loaded in between.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    return policy


def decoder_layers(policy: nn.Module) -> list[nn.Module]:
    """Return the decoder layers of the language model."""
    stacks = [m for name, m in policy.named_modules() if isinstance(m, nn.ModuleList) and name.endswith("layers")]
    return [layer for stack in stacks for layer in stack]


@contextmanager
def accumulate(module: nn.Module, last: bool) -> Iterator[None]:
    """Add up the gradients of one micro-batch locally; exchange them between ranks only if it is the last one."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def clip_gradients(module: nn.Module, max_norm: float) -> Tensor:
    """Clip the gradients in place, and return the norm that the whole gradient had before."""
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    return full_tensor(norm)


def local_state(module: nn.Module) -> dict[str, Tensor]:
    """Return full tensors, or this rank's shards, under the policy's own names. They share memory with the module."""
    return get_model_state_dict(module)  # pyright: ignore[reportReturnType]


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, for which every rank must call this; return any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """Return full tensors under the policy's own names, on the first rank's CPU; the other ranks get nothing.

    Tensors that are not sharded and already on the CPU share memory with the module.
    """
    return get_model_state_dict(module, options=FOR_FILES)  # pyright: ignore[reportReturnType]


def full_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's state as `full_state` does, by parameter names: any number of ranks can load it."""
    return dict(get_optimizer_state_dict(module, optimizer, options=FOR_FILES))


def load_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, policy: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Load what `full_state` and `full_optimizer_state` returned; every rank passes the full tensors.

    The optimizer may keep the tensors of `state` themselves instead of copies.
    """
    set_model_state_dict(module, dict(policy), options=FOR_LOADING)
    set_optimizer_state_dict(module, optimizer, dict(state), options=FOR_LOADING)
