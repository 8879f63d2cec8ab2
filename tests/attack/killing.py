"""Training runs that are killed at any moment and resumed: they must become the run that was never interrupted."""

import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

from attempts import one_sentence
from forked import Forked, finished, verb
from outcome import outcome
from processes import ROOT

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify

STEPS = 7
PATIENCE = 300.0
"""Seconds of one training run."""


def options(engine: str) -> list[str]:
    """Return a small training run of the warm start, whose answers are sometimes right."""
    return [
        *("--model", str(ROOT / "runs" / "warm_start" / "checkpoint"), "--rollout.engine", engine),
        *("--steps", str(STEPS), "--no-tensorboard"),
        *("--prompts-per-step", "8", "--samples-per-prompt", "2", "--eval-prompts", "8", "--eval-every", "3"),
        *("--optim.learning-rate", "3e-4"),
    ]


def train_whole(words: list[str], run: str, log: Path) -> Any:
    """Train without interruption, and return what the run must become."""
    code, error = finished("train", "--run", run, *words, log=log, seconds=PATIENCE)
    assert code == 0, error
    return outcome(runs.LOCAL / run)


def kill_somewhere(process: Forked, run: Path, chance: Random, rows: int) -> None:
    """Wait until the run has so many rows of metrics, and kill the process a moment later."""
    deadline = time.monotonic() + PATIENCE
    while len(runs.read_metrics(run)) < rows and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(chance.random() * chance.choice([0.02, 0.3]))  # chooses the moment within a step
    process.kill()


def problem_of_killed(run: Path) -> str | None:
    """Return what a kill has damaged: steps, rows or the manifest."""
    if not (run / "manifest.json").is_file():
        return None  # it was killed before it had a manifest
    rows = [row["step"] for row in runs.read_metrics(run)]
    if rows != [*range(1, len(rows) + 1)]:
        return f"rows of the steps {rows}"
    report = verify(run)
    problems = [problem for problem in report.problems if "was killed" not in problem]
    return f"after the kill: {problems}" if problems else None


def problem_of_kills(chance: Random, words: list[str], run: str, whole: Any, log: Path) -> str | None:
    """Kill a training run once or more often, resume it to its end, and compare it with the whole one."""
    path, start = runs.LOCAL / run, ["train", "--run", run, *words]
    for _ in range(chance.choice([1, 1, 2])):
        rows = len(runs.read_metrics(path)) if path.is_dir() else 0
        process = verb(*start, log=log)
        kill_somewhere(process, path, chance, min(rows + chance.randint(0, 4), STEPS))
        problem = one_sentence(process.poll(), process.error()) if process.poll() != -9 else None
        if problem := problem or problem_of_killed(path):
            return problem
        start = ["train", "--resume", run]
    code, error = finished(*start, log=log, seconds=PATIENCE)
    problem = one_sentence(code, error)
    if problem or (code == 2 and "is finished" not in error):
        return problem or problem_of_refusal(path, error)
    report = verify(path)
    if report.problems or report.status != "complete":
        return f"after the resume: {report.status}, {report.problems}"
    different = [name for name, a, b in zip(("rows", "pairs", "weights"), outcome(path), whole, strict=True) if a != b]
    shutil.rmtree(path)
    return f"other {', '.join(different)} than without a kill" if different else None


def problem_of_refusal(run: Path, error: str) -> str | None:
    """Return what is wrong if the resume is refused: it may be if the run was killed before its first checkpoint."""
    try:
        runs.read_manifest(run)
        made = (run / "checkpoint" / "trainer.pt").exists() or len(runs.read_metrics(run)) > 1
    except UsageError:
        made = False
    return f"the resume is refused: {error}" if made else None
