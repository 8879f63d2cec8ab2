"""Everything that `--resume` needs, in one file that is there whole or not at all.

The data position, the seeds of the samples and the learning rate are functions of the step, so they need no state.
"""

import io
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.learner.ranks import full_optimizer_state, full_state, load_state, whole
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.session.session import Session

FILE = Path("checkpoint", "trainer.pt")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step`."""

    step: int
    accuracy: float
    bad_steps: int  # in a row, up to this one
    policy: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]  # of the loss in float16; otherwise empty
    shuffle: Tensor
    chance: Tensor
    requests: list[BatchRequest]  # batches that were requested ahead; sampled again from the same weights


def write_checkpoint(run: Path, checkpoint: Checkpoint) -> None:
    """A kill at any moment leaves the old file or the new one."""
    path = run / FILE
    path.parent.mkdir(exist_ok=True)
    content = io.BytesIO()  # torch writes to a file from C++, where Ctrl-C becomes another error, or ends the process
    torch.save(asdict(checkpoint), content)
    runs.write_whole(path, content.getbuffer())


def read_checkpoint(run: Path, device: torch.device) -> Checkpoint:
    """Raises `UsageError` where a run has none, or that of another version of the trainer."""
    path = run / FILE
    if not path.is_file():
        raise UsageError(
            f"{run} has no checkpoint to resume from; it was made with checkpoint_every 0, or has no step."
        )
    content = torch.load(path, map_location=device, weights_only=True)
    if content.keys() != {field.name for field in fields(Checkpoint)}:
        raise UsageError(f"{path} was written by another version of the trainer; go on with that one, or start anew.")
    generators = {name: content[name].cpu() for name in ("shuffle", "chance")}
    requests = [BatchRequest(**request) for request in content["requests"]]
    return Checkpoint(**{**content, **generators, "requests": requests})


def save(session: Session, path: Path, step: int, accuracy: float, bad_steps: int) -> None:
    """Write the state after this step. Every rank calls it; the first one writes."""
    learner = session.learner
    policy, optimizer = full_state(learner.module), full_optimizer_state(learner.module, learner.optimizer)
    requests = [_for_file(request, session.ranks.main) for request in session.queue.requests]
    if session.ranks.main:
        generators = {"shuffle": learner.shuffle.get_state(), "chance": learner.chance.get_state()}
        state = Checkpoint(
            step, accuracy, bad_steps, policy, optimizer, learner.scaler.state_dict(), **generators,
            requests=requests,
        )  # fmt: skip
        write_checkpoint(path, state)


def _for_file(request: BatchRequest, main: bool) -> BatchRequest:
    """With whole weights on the first rank; every rank takes part."""
    gathered = ((name, whole(tensor)) for name, tensor in request.weights)
    return replace(request, weights=[(name, tensor) for name, tensor in gathered if main])


def restore(session: Session, state: Checkpoint) -> tuple[float, int, float]:
    """Put everything back as it was; the accuracy, the bad steps in a row and the seconds so far."""
    learner = session.learner
    load_state(learner.module, learner.optimizer, state.policy, state.optimizer)
    learner.scaler.load_state_dict(state.scaler)
    learner.shuffle.set_state(state.shuffle)
    learner.chance.set_state(state.chance)
    for request in state.requests:
        session.queue.put(request)
    rows = runs.read_metrics(runs.LOCAL / session.config.run)
    return state.accuracy, state.bad_steps, rows[-1]["elapsed"] if rows else 0.0
