"""`make bench ARGS=followed`: what it costs a training that somebody watches it grow.

One training, one thread, beside the app in Chromium: its Training page is open for some seconds, then an empty page,
and so on. Neighbours are compared, so that neither the changing speed of the machine nor of the training counts. Steps
are of very different lengths, though, so that their ratio is noisy; how long the training's threads wait for a core, as
Linux counts it, is not.
"""

import os
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app_runs import chromium, serve, tab
from playwright.sync_api import Page
from processes import ROOT, running

from rlcorr import runs

SECONDS, PAIRS, SKIPPED = 16.0, 16, 2
"""Of each look; pairs of them; steps at the start of each that are left out: the page is being opened or closed."""


@dataclass(frozen=True)
class Look:
    """Some seconds of a training."""

    step: float  # seconds per step
    waited: float  # share of the time that its threads, all together, waited for a core


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
            pairs = looks(page, f"{url}/training?run=newest&step=latest", root / "local" / "r", training.pid)
            assert training.poll() is None, (root / "train.log").read_text()[-3000:]
    print("followed / alone, seconds per step:", said([f.step / a.step for a, f in pairs]))
    print("followed - alone, waiting for a core:", said([f.waited - a.waited for a, f in pairs]))


def said(each: list[float]) -> str:
    error = statistics.stdev(each) / len(each) ** 0.5
    return f"{statistics.mean(each):.3f} ± {error:.3f} (standard error of {len(each)} pairs)"


def looks(page: Page, address: str, run: Path, training: int) -> list[tuple[Look, Look]]:
    """Pairs of a look alone and one followed; which of the two comes first changes."""
    while len(elapsed(run)) < 5:
        time.sleep(1)
    pairs = []
    for number in range(PAIRS):
        found = {}
        for open_page in (True, False) if number % 2 else (False, True):
            page.goto(address if open_page else "about:blank")
            found[open_page] = look(run, training)
        pairs.append((found[False], found[True]))
        print(f"pair {number + 1}: alone {found[False]}, followed {found[True]}", flush=True)
    return pairs


def look(run: Path, training: int) -> Look:
    """Of the steps that begin and end from now on, their mean; of the same seconds, the waiting."""
    first, before, start = len(elapsed(run)) + SKIPPED, waited(training), time.monotonic()
    time.sleep(SECONDS)
    done, share = elapsed(run), (waited(training) - before) / (time.monotonic() - start)
    return Look((done[-1] - done[first - 1]) / (len(done) - first), share)


def waited(session: int) -> float:
    """Seconds that the threads of all processes of this session have been ready to run, and did not."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended since
            if os.getsid(int(process.name)) == session:
                total += sum(int(thread.read_text().split()[1]) for thread in process.glob("task/*/schedstat"))
    return total / 1e9


def elapsed(run: Path) -> list[float]:
    path = run / "metrics.jsonl"
    return [row["elapsed"] for row in runs.read_metrics(run)] if path.is_file() else []


if __name__ == "__main__":
    main()
