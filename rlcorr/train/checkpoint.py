"""Everything that `--resume` needs, in one file that is there whole or not at all.

The data position, the seeds of the samples and the learning rate are functions of the step, so they need no state.
"""

import io
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.learner.ranks import full_optimizer_state, full_state, load_state
from rlcorr.train.rollout.batch_queue import Order
from rlcorr.train.session import Session

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
    content = io.BytesIO()  # torch writes to a file from C++, where Ctrl-C becomes another error, or ends the process
    torch.save(asdict(checkpoint), content)
    with temporary.open("wb") as file:
        file.write(content.getbuffer())
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


def save(session: Session, path: Path, step: int, accuracy: float, bad_steps: int) -> None:
    """Write the state after this step. Every rank calls it; the first one writes."""
    learner = session.learner
    policy, optimizer = full_state(learner.module), full_optimizer_state(learner.module, learner.optimizer)
    if session.ranks.main:
        generators = {"shuffle": learner.shuffle.get_state(), "chance": learner.chance.get_state()}
        orders = session.supply.orders
        write_checkpoint(path, Checkpoint(step, accuracy, bad_steps, policy, optimizer, **generators, orders=orders))


def restore(session: Session, state: Checkpoint) -> tuple[float, int, float]:
    """Put everything back as it was; the accuracy, the bad steps in a row and the seconds so far."""
    learner = session.learner
    load_state(learner.module, learner.optimizer, state.policy, state.optimizer)
    learner.shuffle.set_state(state.shuffle)
    learner.chance.set_state(state.chance)
    for order in state.orders:
        session.supply.order(order)
    rows = runs.read_metrics(runs.LOCAL / session.config.run)
    return state.accuracy, state.bad_steps, rows[-1]["elapsed"] if rows else 0.0
