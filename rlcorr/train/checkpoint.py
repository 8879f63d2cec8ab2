"""Everything that `--resume` needs, in one file that is there whole or not at all.

The data position, the seeds of the samples and the learning rate are functions of the step, so they need no state.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.train.ahead import Order

FILE = Path("checkpoint", "trainer.pt")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step`."""

    step: int
    accuracy: float
    bad_steps: int  # in a row, up to this one
    policy: dict[str, Tensor]
    optimizer: dict[str, Any]
    shuffle: Tensor
    chance: Tensor
    orders: list[Order]  # batches that were sampled ahead, or are being sampled; made again from the same weights


def write_checkpoint(run: Path, checkpoint: Checkpoint) -> None:
    """Temporary name, fsync, rename: a kill at any moment leaves the old file or the new one."""
    path = run / FILE
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        torch.save(asdict(checkpoint), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_checkpoint(run: Path, device: torch.device) -> Checkpoint:
    """Raises `UsageError` where a run has none."""
    path = run / FILE
    if not path.is_file():
        raise UsageError(
            f"{run} has no checkpoint to resume from; it was made with checkpoint_every 0, or has no step."
        )
    content = torch.load(path, map_location=device, weights_only=True)
    generators = {name: content[name].cpu() for name in ("shuffle", "chance")}
    return Checkpoint(**{**content, **generators, "orders": [Order(**order) for order in content["orders"]]})
