"""Runs for the pages, and which run and step a page shows, cached by the state of their files.

Callers must not change what they get.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from data import uploads
from data.caching import cached
from rlcorr.records import held_out, runs
from rlcorr.records.held_out import HeldOutAnswer
from rlcorr.records.verify import Report, verify

EXAMPLE, SKETCHED_EXAMPLE, COMPARED_EXAMPLE = "smol_kv_fp8_e5m2", "smol_sketch_stale_6", "stale_4"
"""The committed runs to show first: a real language model with a mismatch that all presets act on, and a run whose
sketch of the gradient shows which threshold is best."""

Stamp = tuple[int, int]
"""(mtime_ns, size) of a file, which changes with the file; (0, 0) if there is none."""

USUAL_RUN, LATEST = "example", "latest"
"""The run and the step that are shown if nobody has picked one."""


@dataclass(frozen=True)
class Selection:
    """A run, its steps, the one that is shown if one can be read, and sentences about newer ones that cannot."""

    slug: str
    run: Path
    steps: tuple[int, ...]
    step: int | None
    problems: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Return the line that says which run, step and file the pictures of this step show."""
        return source(self.run, self.step)

    @property
    def step_options(self) -> list[str]:
        return step_options(self.steps)


def all_runs() -> dict[str, Path]:
    """Return slug → run: the committed runs, the local ones, and the files that this visitor dropped."""
    return runs.list_runs() | uploads.mine()


def stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:  # not written yet, or being replaced at this moment
        return 0, 0
    return status.st_mtime_ns, status.st_size


def has_steps(run: Path) -> bool:
    return next((run / "steps").glob("*.parquet"), None) is not None


def default_run(paths: dict[str, Path], view: str = "start") -> str:
    """Return the slug of the run that a view shows if nobody has picked one.

    It is an example, or the first recorded run: what an address without a run shows is the same on every machine.
    Gradient and KL losses consider only runs with a sketch of the gradient, if there are any.
    """
    if view in ("gradient", "kl"):
        paths = {slug: path for slug, path in paths.items() if runs.list_sketches(path)} or paths
        example = SKETCHED_EXAMPLE
    else:  # on Compare, rules that reject answers keep nothing of the example of the other views
        example = COMPARED_EXAMPLE if view == "compare" else EXAMPLE
    return example if example in paths else next(iter(paths))


def step_options(steps: Sequence[int]) -> list[str]:
    return [LATEST, *map(str, reversed(steps))]


def selected(slug: str, run: Path, step: str) -> Selection:
    """Return this run with this step, or with the latest one that can be read."""
    steps = tuple(runs.list_steps(run))
    if step in map(str, steps):
        return Selection(slug, run, steps, int(step))
    number, problems = latest(run, [*steps])
    shown = f"Showing step {number}, the newest that can be read." if number is not None else "No step can be read."
    return Selection(slug, run, steps, number, tuple(f"{problem} {shown}" for problem in problems))


def run_status(run: Path) -> tuple[str, float]:
    """Return the manifest's status, a key of `phrases.STATUS`, and the age of the newest file in seconds.

    The status is "stopped" if the manifest says running but nothing has changed for a minute.
    """
    changing = (run / "manifest.json", runs.metrics_path(run), run / "steps")  # with every step
    age = time.time() - max(stamp(path)[0] for path in changing) / 1e9
    try:
        status = manifest(run).status
    except runs.DamagedFile:
        status = "unknown"
    return "stopped" if status == "running" and age > 60 else status, age


@cached(64, lambda run: (run, stamp(run / "manifest.json")))
def manifest(run: Path) -> runs.RunManifest:
    """Return the manifest of a run. Raises `DamagedFile`."""
    return runs.read_manifest(run)


@cached(64, lambda run: (run, stamp(run / held_out.FILE)))
def answers(run: Path) -> list[HeldOutAnswer]:
    """Return the greedy answers to the same held-out prompts over the run; none if it recorded none."""
    return held_out.read_answers(run)


def series(rows: list[dict], key: str) -> list[float | None]:
    """Return one metric for each row; None for a row without a finite number."""
    values = (row.get(key) for row in rows)
    return [v if isinstance(v, int | float) and math.isfinite(v) else None for v in values]


def first_and_last(values: Sequence[float | None]) -> tuple[float, float, int] | None:
    """Return the mean of the first and of the last steps that have a value, and how many steps were averaged.

    These are ten steps at each end, or a third of all if there are fewer than thirty. Return None for fewer than three.
    """
    numbers = [value for value in values if value is not None]
    count = min(10, len(numbers) // 3)
    return (sum(numbers[:count]) / count, sum(numbers[-count:]) / count, count) if count else None


@cached(16, lambda run, number: (run, number, stamp(runs.step_path(run, number))))
def step(run: Path, number: int) -> runs.StepRecord:
    """Return a recorded step. Raises `DamagedFile`."""
    return runs.read_step(run, number)


def positions(shown: Selection) -> int:
    """Return the positions of the step, answers times the longest one; 0 if it cannot be read."""
    with suppress(runs.DamagedFile):  # the page says so
        if shown.step is not None:
            return step(shown.run, shown.step).batch.response_mask.numel()
    return 0


def source(run: Path, number: int | None) -> str:
    """Return the line that says what a picture shows: run, step, seed, and the first digits of the file's sha256.

    An upload is named as its file.

    The file is that of the step, or without a step that of the metrics, which has no hash while the run goes on. The
    hash is computed only if the manifest does not have it yet.
    """
    name = uploads.shown_name(run.name)
    path = runs.metrics_path(run) if number is None else runs.step_path(run, number)
    if number is None and not path.is_file():
        return name
    try:
        about = manifest(run)
    except runs.DamagedFile:
        seed, hashed = "unknown", None
    else:
        seed, hashed = about.seed, about.files.get(path.relative_to(run).as_posix())
        if number is None and about.status == "running":  # the next step changes the file, which may be large
            return f"{name} · seed {seed}"
    steps = "" if number is None else f" · step {number}"
    seeds = "" if run.name.startswith(uploads.PREFIX) else f" · seed {seed}"  # files have none
    return f"{name}{steps}{seeds} · {digest(path, hashed)}"


@cached(64, lambda path, hashed=None: (path, hashed or stamp(path)))
def digest(path: Path, hashed: str | None = None) -> str:
    """Return the first digits of a file's sha256; `hashed` is the whole hash if it is known."""
    return (hashed or runs.sha256(path))[:12]


def latest(run: Path, steps: list[int]) -> tuple[int | None, list[str]]:
    """Return the newest step that can be read, and a sentence about each newer one that cannot."""
    problems = []
    for number in reversed(steps):
        try:
            step(run, number)
        except runs.DamagedFile as error:
            problems.append(str(error))
        else:
            return number, problems
    return None, problems


@cached(64, lambda run: (run, tuple((path.name, *stamp(path)) for path in sorted(run.rglob("*")) if path.is_file())))
def verified(run: Path) -> Report:
    """Check every file of the run; the result is cached until one of them changes."""
    return verify(run)
