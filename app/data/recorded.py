"""Reading runs for the pages, cached by what the file system says. Callers must not change what they get."""

import hashlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from data import uploads
from rlcorr import CorrectionResult
from rlcorr.ratios import over_sequence, ratio
from rlcorr.records import held_out, runs
from rlcorr.records.held_out import HeldOutAnswer
from rlcorr.records.verify import Report, verify

STALLED_AFTER = 60.0
"""Seconds without a changed file after which a run that calls itself running has stopped."""

EXAMPLE, SKETCHED_EXAMPLE = "smol_kv_fp8_e5m2", "kv_fp8_e5m2"
"""The committed run with the most to see: a real language model, and a mismatch that all presets act on. And the one of
those with a sketch of the gradient."""

Stamp = tuple[int, int]
"""(mtime_ns, size): changes whenever the file does; (0, 0) if there is none."""


@dataclass(frozen=True)
class Life:
    """Whether a run is alive: a key of STATUS, and the age of its newest file in seconds."""

    status: str
    age: float


@dataclass(frozen=True)
class Response:
    """One sampled response, and the geometric mean of its token ratios."""

    prompt: str
    text: str
    reward: float
    mean_ratio: float


def all_runs() -> dict[str, Path]:
    """slug → run: the committed ones, the local ones, and the files that this visitor has dropped."""
    return runs.list_runs() | uploads.mine()


def stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:  # not written yet, or being replaced at this moment
        return 0, 0
    return status.st_mtime_ns, status.st_size


def pulse(run: Path) -> tuple[Stamp, ...]:
    """Three stats that change with every step: cheap enough to compare every two seconds."""
    return tuple(stamp(path) for path in (run / "manifest.json", runs.metrics_path(run), run / "steps"))


def has_steps(run: Path) -> bool:
    return next((run / "steps").glob("*.parquet"), None) is not None


def shown_first(paths: dict[str, Path], *, sketched: bool = False) -> str:
    """Return the newest local run that has a step, or if nothing was trained yet, the example, or the first recorded
    run. `sketched`: of the runs with a sketch of the gradient, if there are any."""
    if sketched:
        paths = {slug: path for slug, path in paths.items() if runs.list_sketches(path)} or paths
    local = [slug for slug, path in paths.items() if path.parent == runs.LOCAL and has_steps(path)]
    example = SKETCHED_EXAMPLE if sketched else EXAMPLE
    if local:
        return local[0]
    return example if example in paths else next(iter(paths))


def life(run: Path) -> Life:
    """The manifest's status, unless it says running and nothing has changed for a minute."""
    age = time.time() - max(mtime for mtime, _ in pulse(run)) / 1e9
    try:
        status = manifest(run).status
    except runs.DamagedFile:
        status = "unknown"
    return Life("stopped" if status == "running" and age > STALLED_AFTER else status, age)


def manifest(run: Path) -> runs.RunManifest:
    """Raises `DamagedFile`."""
    return _manifest(run, stamp(run / "manifest.json"))


def metric_rows(run: Path) -> list[dict]:
    """The rows of metrics that name a step."""
    rows = _metric_rows(run, stamp(runs.metrics_path(run)))
    return [row for row in rows if isinstance(row["step"], int)]


def answers(run: Path) -> list[HeldOutAnswer]:
    """Return the greedy answers to the same held-out prompts over the run; none if it recorded none."""
    return _answers(run, stamp(run / held_out.FILE))


def series(rows: list[dict], key: str) -> list[float | None]:
    """One metric over the rows; None where a row has no finite number for it."""
    values = (row.get(key) for row in rows)
    return [v if isinstance(v, int | float) and math.isfinite(v) else None for v in values]


def step(run: Path, number: int) -> runs.StepRecord:
    """Raises `DamagedFile`."""
    return _step(run, number, stamp(runs.step_path(run, number)))


def source(run: Path, number: int | None) -> str:
    """Where a picture comes from, in one line: run, step, seed, and the first digits of the sha256 of the step's file
    (of what is on the disk where the manifest does not have it yet). Without a step, that of the metrics over all."""
    path = runs.metrics_path(run) if number is None else runs.step_path(run, number)
    if number is None and not path.is_file():
        return run.name
    try:
        about = manifest(run)
    except runs.DamagedFile:
        seed, hashed = "unknown", None
    else:
        seed, hashed = about.seed, about.files.get(path.relative_to(run).as_posix())
    steps = "" if number is None else f" · step {number}"
    return f"{run.name}{steps} · seed {seed} · {digest(path, hashed)}"


def digest(path: Path, hashed: str | None = None) -> str:
    """The first digits of a file's sha256, which need not be computed where it is known."""
    return (hashed or _sha256(path, stamp(path)))[:12]


def latest(run: Path, steps: list[int]) -> tuple[int | None, list[str]]:
    """The newest step that can be read, and a sentence about each newer one that cannot."""
    problems = []
    for number in reversed(steps):
        try:
            step(run, number)
        except runs.DamagedFile as error:
            problems.append(str(error))
        else:
            return number, problems
    return None, problems


def verified(run: Path) -> Report:
    """The check of every file of the run, repeated only if one of them changed."""
    files = sorted(p for p in run.rglob("*") if p.is_file())
    return _verified(run, tuple((p.name, *stamp(p)) for p in files))


def furthest(record: runs.StepRecord, result: CorrectionResult, count: int) -> list[Response]:
    """The responses whose mean log-ratio is largest in size."""
    d = over_sequence(result.log_ratio, record.batch.response_mask, "mean")
    rewards = record.batch.tensors()["rewards"].tolist()
    means = ratio(d).tolist()
    rows = d.abs().argsort(descending=True, stable=True)[:count].tolist()
    return [Response(record.prompts[i], record.responses[i], rewards[i], means[i]) for i in rows]


# cache_resource hands out the object itself: copying a step costs more than correcting it.


@st.cache_resource(max_entries=64, show_spinner=False)
def _manifest(run: Path, version: Stamp) -> runs.RunManifest:
    return runs.read_manifest(run)


@st.cache_resource(max_entries=64, show_spinner=False)
def _metric_rows(run: Path, version: Stamp) -> list[dict]:
    return runs.read_metrics(run)


@st.cache_resource(max_entries=64, show_spinner=False)
def _answers(run: Path, version: Stamp) -> list[HeldOutAnswer]:
    return held_out.read_answers(run)


@st.cache_resource(max_entries=16, show_spinner=False)
def _step(run: Path, number: int, version: Stamp) -> runs.StepRecord:
    return runs.read_step(run, number)


@st.cache_resource(max_entries=64, show_spinner=False)
def _sha256(path: Path, version: Stamp) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@st.cache_resource(max_entries=64, show_spinner=False)
def _verified(run: Path, versions: tuple) -> Report:
    return verify(run)
