"""Single flipped bits in every file of a run: `verify` notices them, or what is read is what was written."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from app_runs import write_sketch
from attempts import Attack
from step_records import record

from rlcorr.errors import UsageError
from rlcorr.records import runs, sketch_files
from rlcorr.records.held_out import HeldOutAnswer, append_answers, read_answers
from rlcorr.records.verify import verify
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.session.checkpoint import FILE, Checkpoint, read_checkpoint, write_checkpoint

STEPS = (0, 1)
FLIPS = {
    "steps/step_000000.parquet": 300, "metrics.jsonl": 150, "metrics.jsonl.gz": 60, "answers.jsonl": 60,
    "sketch/step_000000.safetensors.gz": 150, "manifest.json": 250, str(FILE): 150,
}  # fmt: skip
"""Path → number of flips."""
HASHED = FLIPS.keys() - {"manifest.json", str(FILE)}
"""Files that only the hashes of a finished run protect; the others are damaged in a run that is still going."""
CPU = torch.device("cpu")


def make_run(run: Path) -> None:
    """Write a finished run with every kind of file."""
    runs.start_run(run, runs.RunManifest(slug=run.name, story="A story.", seed=7, config={"lr": 0.125}))
    for step in STEPS:
        runs.write_step(run, record(step))
        runs.append_metrics(run, {"step": step, "reward": step / 3, "loss": -1.25e-7, "name": "a text"})
        append_answers(run, [HeldOutAnswer(step, "1+1=", "2", 0.5)])
    weight = {"w": torch.randn(40, 25, generator=torch.Generator().manual_seed(0))}
    states = {name: torch.Generator().get_state() for name in ("shuffle", "chance")}
    request = BatchRequest(3, 2, [("w", weight["w"] + 1)])
    write_checkpoint(
        run, Checkpoint(2, 0.5, 0, weight, {"state": {0: {"step": 3.0}}}, {}, **states, requests=[request])
    )
    write_sketch(run)


def reading(run: Path, name: str) -> list[tuple[str, Any]]:
    """Return what is read of a file, in parts that are there or missing. Raises `UsageError` if it is refused."""
    if name.startswith("steps"):
        read = runs.read_step(run, 0)
        return [("texts", (read.prompts, read.responses)), *read.batch.tensors().items()]
    if name.startswith("metrics"):
        return [(f"row {row['step']}", row) for row in runs.read_metrics(run)]
    if name.startswith("answers"):
        return [(f"step {answer.step}", vars(answer)) for answer in read_answers(run)]
    if name.startswith("sketch"):
        sketch = sketch_files.read_sketch(run, 0)
        return [("scores", sketch.scores), *vars(sketch.reference).items()]
    if name.startswith("manifest"):
        return [*vars(runs.read_manifest(run)).items()]
    state = read_checkpoint(run, CPU)
    return [*flat(vars(state))]


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dictionaries, lists and objects."""
    if isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, f"{path}.{key}")
    elif isinstance(value, BatchRequest):
        yield from flat(vars(value), path)
    else:
        yield path, value


def same(a: Any, b: Any) -> bool:
    """Compare two values bit by bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(key in b and same(value, b[key]) for key, value in a.items())
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and repr(a) == repr(b)


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """Flip one bit of a file during a `with` block."""
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(content)


def problem_of(run: Path, name: str, whole: dict[str, Any], expected: list[str]) -> str | None:
    """Return what is wrong with reading a damaged file. `expected` are the problems of the sound run."""
    try:
        noticed = verify(run).problems != expected
        parts = reading(run, name)
    except UsageError:
        return None
    except Exception as error:
        return f"Traceback: {error!r}"
    if noticed:
        return None
    other = [part for part, value in parts if not same(whole.get(part), value)]
    return f"read as other numbers: {', '.join(other)}" if other else None


def make_runs(folder: Path) -> dict[str, Path]:
    """Make a finished run, one whose metrics are packed, and one that is still going, where nothing is hashed."""
    runs_by_name = {name: folder / name for name in ("finished", "packed", "going")}
    make_run(runs_by_name["finished"])
    manifest = runs.read_manifest(runs_by_name["finished"])
    for name, run in runs_by_name.items():
        if name != "finished":
            shutil.copytree(runs_by_name["finished"], run)
        if name == "packed":
            runs.pack_metrics(run)
    for name in ("finished", "packed"):
        runs.finish_run(runs_by_name[name], replace(manifest, status="complete"))
    runs.write_manifest(runs_by_name["going"], replace(manifest, status="running", files={}))
    return runs_by_name


def attack(attack: Attack) -> None:
    """Flip bits in the files of a finished run, and in those of a run that is still going that have a checksum."""
    made = make_runs(attack.folder)
    sound = {name: verify(run).problems for name, run in made.items()}
    assert sound["finished"] == sound["packed"] == []
    for file, count in FLIPS.items():
        for number, chance in attack.attempts(count):
            name = "packed" if file.endswith("jsonl.gz") else "finished" if file in HASHED else "going"
            run = made[name]
            whole, bit = dict(reading(run, file)), chance.randrange(8 * (run / file).stat().st_size)
            with flipped(run / file, bit):
                problem = problem_of(run, file, whole, sound[name])
            attack.judge(number, f"bit {bit} of {file} in a run that is {name}", problem)
