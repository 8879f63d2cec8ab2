"""`make bench ARGS=gradients`: a report and a sweep on 131 k tokens, and what it takes to record a step's sketch."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from processes import ROOT, rlcorr

from rlcorr.config import CorrectionConfig
from rlcorr.gradients.report import report
from rlcorr.gradients.sketch import Reference, Sketch
from rlcorr.records import runs
from rlcorr.types import TokenBatch

WARM_START = ROOT / "runs" / "warm_start" / "checkpoint"
ROWS, COLUMNS, DIRECTIONS, POINTS = 1024, 128, 256, 60


def example() -> tuple[TokenBatch, Sketch]:
    some = torch.Generator().manual_seed(0)
    old = -torch.rand(ROWS, COLUMNS, generator=some) - 1
    batch = TokenBatch(
        response_mask=torch.ones(ROWS, COLUMNS, dtype=torch.bool),
        rollout_log_probs=old + 0.1 * torch.randn(ROWS, COLUMNS, generator=some),
        old_log_probs=old,
        advantages=torch.randn(ROWS, COLUMNS, generator=some),
    )
    by_token, by_sequence = torch.randn(2, 32, DIRECTIONS, generator=some)
    reference = Reference(by_token, by_sequence, torch.full((32,), 4096.0), torch.full((32,), 32.0))
    return batch, Sketch(torch.randn(ROWS * COLUMNS, DIRECTIONS, generator=some), reference)


def milliseconds(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Median and largest, after one run to warm up."""
    work()
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        durations.append(1000 * (time.perf_counter() - start))
    return statistics.median(durations), max(durations)


def main() -> None:
    batch, sketch = example()
    thresholds = torch.linspace(1, 5, POINTS).tolist()
    caps = [CorrectionConfig(rollout_is="token", rollout_is_threshold=cap) for cap in thresholds]
    for name, work, times in (
        ("report of one preset, 200 bootstrap samples", lambda: report.report(batch, sketch, caps[0]), 40),
        (f"sweep over {POINTS} thresholds", lambda: report.compare(batch, sketch, caps), 3),
    ):
        middle, most = milliseconds(work, times)
        size = f"{ROWS * COLUMNS:,} tokens × {DIRECTIONS} directions, {torch.get_num_threads()} threads"
        print(f"{name}, {size}: {middle:.0f} ms (median), {most:.0f} ms (most)", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        options = ("--steps", "1", "--eval-prompts", "8", "--sketch.every", "1", "--run", "r")
        done = rlcorr("train", "--model", str(WARM_START), *options, runs_folder=Path(folder), timeout=1800)
        assert done.returncode == 0, done.stderr[-2000:]
        (row,) = runs.read_metrics(Path(folder) / "local" / "r")
    print(
        f"sketch of a step, addition, 256 sequences, 256 directions, reference included: {row['timing/sketch']:.0f} s"
    )
