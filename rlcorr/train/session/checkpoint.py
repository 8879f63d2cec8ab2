"""Everything that `--resume` needs, in one file, which is never written in part.

The position in the data, the seeds of the samples and the learning rate follow from the step, so they are not saved.
"""

import io
import pickle
import zipfile
import zlib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr.errors import UsageError, first_line
from rlcorr.records import runs
from rlcorr.records.disk import make_folder, write_whole
from rlcorr.train.learner.ranks import full_optimizer_state, full_state, full_tensor, load_state
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.session.session import Session

FILE = Path("checkpoint", "trainer.pt")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step`. The names of the fields are the keys of the file."""

    step: int
    accuracy: float
    bad_steps: int  # in a row, up to this one
    policy: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]  # scale of the loss in float16; otherwise empty
    shuffle: Tensor  # state of `Learner.shuffle_rng`
    chance: Tensor  # state of `Learner.loss_rng`
    requests: list[BatchRequest]  # batches that were requested ahead; they are sampled again from the same weights


def write_checkpoint(run: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a run. A kill at any moment leaves the old file or the new one."""
    path = run / FILE
    make_folder(path.parent)
    # Write to memory first: inside torch's C++ file writer, Ctrl-C becomes another error or ends the process.
    content = io.BytesIO()
    torch.save(asdict(checkpoint), content)
    write_whole(path, content.getbuffer())


def read_checkpoint(run: Path, device: torch.device) -> Checkpoint:
    """Read the checkpoint of a run. Raises `UsageError` if it cannot be read, or has another version of the trainer."""
    path = run / FILE
    try:  # torch writes a checksum for each part of the file, and reads past them
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, first_line(error)) from error
    if damaged is not None:
        raise _damaged(path, f"{damaged} differs from its checksum")
    content = load_file(path, map_location=device)
    if not isinstance(content, dict) or content.keys() != {field.name for field in fields(Checkpoint)}:
        raise UsageError(
            f"{path} was written by another version of the trainer: resume with that version, or start a new run."
        )
    generators = {name: content[name].cpu() for name in ("shuffle", "chance")}
    requests = [BatchRequest(**request) for request in content["requests"]]
    return Checkpoint(**{**content, **generators, "requests": requests})


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is damaged, so the run cannot be resumed ({why}).")


def load_file(path: Path, **options: Any) -> Any:
    """Return the content of a checkpoint. Raises `UsageError` if the file is damaged."""
    try:
        return torch.load(path, weights_only=True, **options)
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise _damaged(path, first_line(error)) from error


def save(session: Session, path: Path, step: int, accuracy: float, bad_steps: int) -> None:
    """Write the state after a step. Every rank must call this; the first one writes."""
    learner = session.learner
    policy, optimizer = full_state(learner.module), full_optimizer_state(learner.module, learner.optimizer)
    requests = [_for_file(request, session.ranks.main) for request in session.queue.requests]
    if session.ranks.main:
        generators = {"shuffle": learner.shuffle_rng.get_state(), "chance": learner.loss_rng.get_state()}
        state = Checkpoint(
            step, accuracy, bad_steps, policy, optimizer, learner.scaler.state_dict(), **generators,
            requests=requests,
        )  # fmt: skip
        write_checkpoint(path, state)


def _for_file(request: BatchRequest, main: bool) -> BatchRequest:
    """Return a request with full weights on the first rank and none on the others. Every rank must call this."""
    gathered = ((name, full_tensor(tensor)) for name, tensor in request.weights)
    return replace(request, weights=[(name, tensor) for name, tensor in gathered if main])


def restore(session: Session, state: Checkpoint) -> tuple[float, int, float]:
    """Restore the session; return the accuracy, the number of bad steps in a row and the seconds of the run so far."""
    learner = session.learner
    load_state(learner.module, learner.optimizer, state.policy, state.optimizer)
    learner.scaler.load_state_dict(state.scaler)
    learner.shuffle_rng.set_state(state.shuffle)
    learner.loss_rng.set_state(state.chance)
    for request in state.requests:
        session.queue.put(request)
    rows = runs.read_metrics(runs.LOCAL / session.config.run)
    return state.accuracy, state.bad_steps, rows[-1]["elapsed"] if rows else 0.0
