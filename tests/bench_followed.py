"""`make bench ARGS=followed`: what it costs a training that somebody watches it grow.

One training, one thread, beside the app in Chromium: its Training page is open for some seconds, then an empty page,
and so on. Neighbours are compared, so that neither the changing speed of the machine nor of the training counts.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

from app_runs import chromium, serve, tab
from playwright.sync_api import Page
from processes import ROOT, running

from rlcorr import runs

SECONDS, PAIRS, SKIPPED = 16.0, 16, 2
"""Of each look; pairs of them; steps at the start of each that are left out: the page is being opened or closed."""


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        options = ("--run", "r", "--steps", "100000", "--record-every", "1", "--eval-every", "100000")
        model = str(ROOT / "runs" / "warm_start" / "checkpoint")
        with (
            running("train", "--model", model, *options, runs_folder=root, log=root / "train.log") as training,
            serve(root) as url,
            chromium() as browser,
            tab(browser, viewport={"width": 1440, "height": 900}) as page,
        ):
            ratios = compared(page, f"{url}/training?run=newest&step=latest", root / "local" / "r")
            assert training.poll() is None, (root / "train.log").read_text()[-3000:]
    mean, error = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"followed / alone: {mean:.3f} ± {error:.3f} (standard error of {len(ratios)} pairs)")


def compared(page: Page, address: str, run: Path) -> list[float]:
    """Seconds per step followed, over those alone, of each pair; which of the two comes first changes."""
    while len(elapsed(run)) < 5:
        time.sleep(1)
    ratios = []
    for pair in range(PAIRS):
        found = {}
        for open_page in (True, False) if pair % 2 else (False, True):
            page.goto(address if open_page else "about:blank")
            found[open_page] = step_seconds(run)
        ratios.append(found[True] / found[False])
        print(f"pair {pair + 1}: {found[False]:.3f} s per step alone, {found[True]:.3f} followed", flush=True)
    return ratios


def step_seconds(run: Path) -> float:
    """The mean of the steps that begin and end from now on."""
    first = len(elapsed(run)) + SKIPPED
    time.sleep(SECONDS)
    done = elapsed(run)
    return (done[-1] - done[first - 1]) / (len(done) - first)


def elapsed(run: Path) -> list[float]:
    path = run / "metrics.jsonl"
    return [row["elapsed"] for row in runs.read_metrics(run)] if path.is_file() else []


if __name__ == "__main__":
    main()
