"""`make bench ARGS=followed`: what it costs a training that somebody watches it grow.

The same training alone and beside the app with its Training page open in Chromium, in turns, one thread each. Steps are
compared by their number, so that answers of different length do not count.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from app_runs import browser, serve
from processes import ROOT, rlcorr

from rlcorr import runs

STEPS, SKIPPED, TURNS = 40, 5, 3
"""Steps of a training; those at its start that are left out; trainings of each kind."""


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    alone, followed = [], []
    for turn in range(TURNS):
        for kind, found in (("alone", alone), ("followed", followed)):
            found.append(step_seconds(watched=kind == "followed"))
            print(f"{kind}, turn {turn + 1}: {statistics.median(found[-1]):.3f} s per step", flush=True)
    for turn, (a, b) in enumerate(zip(alone, followed, strict=True), 1):
        print(f"turn {turn}: followed / alone {statistics.median(y / x for x, y in zip(a, b, strict=True)):.3f}")
    each = [statistics.median(steps) for steps in zip(*alone, strict=True)]
    beside = [statistics.median(steps) for steps in zip(*followed, strict=True)]
    print(f"cost of being followed: {sum(beside) / sum(each) - 1:+.1%}")


def step_seconds(*, watched: bool) -> list[float]:
    """Seconds of each step but the first few."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        options = ("--run", "r", "--steps", str(STEPS), "--record-every", "1", "--eval-every", "1000")
        with following(root) if watched else nullcontext():
            done = rlcorr(
                "train", "--model", str(ROOT / "runs" / "warm_start" / "checkpoint"), *options, runs_folder=root,
                timeout=1200,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        elapsed = [row["elapsed"] for row in runs.read_metrics(root / "local" / "r")]
    return [after - before for before, after in zip(elapsed[SKIPPED:], elapsed[SKIPPED + 1 :], strict=False)]


@contextmanager
def following(root: Path) -> Iterator[None]:
    """A page that shows the newest run, and looks for a newer step by itself."""
    with serve(root) as url, browser(viewport={"width": 1440, "height": 900}) as page:
        page.goto(f"{url}/training?run=newest&step=latest")
        yield
