"""The run that `--resume` means, and the options that may change when it is resumed."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError, unknown
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.model_source import resolve_model
from rlcorr.train.output.provenance import inputs_sha256, weights_sha256
from rlcorr.train.session.checkpoint import FILE, load_file

CHANGEABLE = (
    "steps", "stop_at_accuracy", "eval_every", "record_every", "checkpoint_every", "max_bad_steps", "save_model",
    "tensorboard", "rollout.max_model_len",
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


def refuse_other_inputs(path: Path, config: TrainConfig) -> None:
    """Raise `UsageError` if prompts, reward function or weights are not those with which the run began."""
    before = runs.read_manifest(path)
    now = weights_sha256(resolve_model(config.model)) | inputs_sha256(config)
    for name, digest in (before.weights_sha256 | before.inputs_sha256).items():
        if now.get(name) != digest:
            raise UsageError(
                f"--resume continues the same run, but {name} has changed since it began: restore it, or start a new "
                "run."
            )


def resumed_manifest(before: RunManifest, now: RunManifest, step: int) -> RunManifest:
    """Return the manifest of a run that goes on after a step; print the commit and the versions that have changed."""
    ends = [{"git_commit": before.git_commit, "versions": before.versions}, *before.resumed]
    origin = {"git_commit": now.git_commit, "versions": now.versions}
    differs = any(ends[-1][name] != value for name, value in origin.items())
    if differs:
        print(f"resumed with other code: {origin} after step {step}, {ends[-1]} before.", flush=True)
    resumed = [*before.resumed, *([{"after_step": step, **origin}] if differs else [])]
    origin = {name: getattr(before, name) for name in ("git_commit", "versions", "started")}
    return replace(now, resumed=resumed, **origin)


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
