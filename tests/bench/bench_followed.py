"""`make bench ARGS=followed`: what it costs a training that somebody watches it grow.

One training, one thread, beside the app in Chromium: its Training page is open for some seconds, then an empty page,
and so on. Neighbours are compared, so that neither the changing speed of the machine nor of the training counts, and
the median is taken of what they say: a hiccup of the machine weighs more than what is looked for.
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

from rlcorr.records import runs

SECONDS, PAIRS, SKIPPED = 32.0, 16, 2
"""Of each look; pairs of them; steps before each, while the page is being opened or closed."""


@dataclass(frozen=True)
class Look:
    """Some seconds of a training."""

    step: float  # seconds per step
    others: float  # cores that everything else on the machine took


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
    print("seconds per step, followed / alone:", said([f.step / a.step for a, f in pairs]))
    print("cores that server and browser take, followed - alone:", said([f.others - a.others for a, f in pairs]))


def said(ratios: list[float]) -> str:
    """The median, and the interval between order statistics that holds it more than nine times in ten."""
    ordered, half = sorted(ratios), 0.98 * len(ratios) ** 0.5
    low, high = ordered[int(len(ratios) / 2 - half)], ordered[-int(len(ratios) / 2 - half) - 1]
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs)"


def looks(page: Page, address: str, run: Path, training: int) -> list[tuple[Look, Look]]:
    """Pairs of a look alone and one followed; which of the two comes first changes."""
    pairs = []
    for number in range(PAIRS):
        looks = {}
        for open_page in (True, False) if number % 2 else (False, True):
            page.goto(address if open_page else "about:blank")
            looks[open_page] = look(run, training)
        pairs.append((looks[False], looks[True]))
        print(f"pair {number + 1}: alone {looks[False]}, followed {looks[True]}", flush=True)
    return pairs


def look(run: Path, training: int) -> Look:
    """Of the steps that begin and end from now on, but for the first few."""
    wanted = len(elapsed(run)) + SKIPPED
    while (first := len(elapsed(run))) < wanted:
        time.sleep(0.5)
    before, start = others(training), time.monotonic()
    time.sleep(SECONDS)
    done, taken = elapsed(run), (others(training) - before) / (time.monotonic() - start)
    return Look((done[-1] - done[first - 1]) / (len(done) - first), taken)


def others(training: int) -> float:
    """Seconds of CPU time of everything but the session that this process leads."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    ticks = user + nice + system + irq + softirq
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended since
            if os.getsid(int(process.name)) == training:
                ticks -= sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def elapsed(run: Path) -> list[float]:
    path = run / "metrics.jsonl"
    return [row["elapsed"] for row in runs.read_metrics(run)] if path.is_file() else []


if __name__ == "__main__":
    main()
