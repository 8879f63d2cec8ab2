"""The run that `--resume` means, and the options that may change when it is resumed."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError, unknown
from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.session.checkpoint import FILE, load_file

CHANGEABLE = (
    "steps", "stop_at_accuracy", "eval_every", "record_every", "checkpoint_every", "max_bad_steps", "save_model",
    "tensorboard",
)  # fmt: skip
"""Options whose change has no effect on the steps that are already made."""


def run_to_resume(name: str) -> Path:
    """Return the directory of a local run, given its name or its path. Raises `UsageError` if it cannot be resumed."""
    path = runs.LOCAL / Path(name).name
    if not path.is_dir() or (name != path.name and Path(name).resolve() != path.resolve()):
        raise unknown("run", name, (folder.name for folder in runs.LOCAL.glob("*/")))
    for file, reason in (
        ("config.yaml", "it was made by an older version"),
        (FILE.as_posix(), "it was made with --checkpoint-every 0, or ended before its first checkpoint"),
    ):
        if not (path / file).is_file():
            raise UsageError(f"run {path.name} cannot be resumed, because it has no {file}: {reason}.")
    return path


def check_resumed(path: Path, before: TrainConfig, after: TrainConfig) -> None:
    """Raise `UsageError` if the changes would make it a different run, or if the run has nothing left to do."""
    for name in changed(before, after):
        if name not in CHANGEABLE:
            option, allowed = option_of(name), ", ".join(map(option_of, CHANGEABLE))
            raise UsageError(f"--resume continues the same run, so {option} cannot change. These can: {allowed}.")
    if runs.read_manifest(path).status != "complete":
        return  # even after the last step: the run may have been killed before the model was written
    state = load_file(path / FILE, mmap=True)  # mmap: weights are not read
    if state["step"] >= after.steps or state["accuracy"] >= after.stop_at_accuracy:
        raise UsageError(
            f"run {path.name} is finished: it has made {state['step']} steps, and its accuracy is "
            f"{state['accuracy']:.2f}; give more --steps, or a higher --stop-at-accuracy."
        )


def changed(before: Any, after: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the fields that differ."""
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(old):
            yield from changed(old, new, f"{prefix}{field.name}.")
        elif old != new:
            yield prefix + field.name


def option_of(name: str) -> str:
    return "--" + name.replace("_", "-")
