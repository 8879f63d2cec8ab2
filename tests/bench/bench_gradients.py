"""`make bench ARGS=gradients`: a moved threshold and all presets on a committed run, a report and a sweep on 131 k
tokens, and what it takes to record a step's sketches."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from processes import ROOT, rlcorr

from rlcorr.bounds import at_threshold
from rlcorr.config import CorrectionConfig
from rlcorr.gradients.report import BATCH_SIZES, Ranking, compare, difference, report
from rlcorr.gradients.sketch import Reference, SampledSketch, Sketch
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs
from rlcorr.records.recipes import sketched_runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.types import TokenBatch

WARM_START = ROOT / "runs" / "warm_start" / "checkpoint"
ROWS, COLUMNS, DIRECTIONS, POINTS = 1024, 128, 256, 60
EXACT_PROMPTS = 64


def example() -> tuple[TokenBatch, SampledSketch]:
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
    return batch, SampledSketch(torch.randn(ROWS * COLUMNS, DIRECTIONS, generator=some), reference)


def milliseconds(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Median and largest, after one run to warm up."""
    work()
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        durations.append(1000 * (time.perf_counter() - start))
    return statistics.median(durations), max(durations)


def printed(name: str, times: tuple[float, float], allowed: float | None = None) -> None:
    most = "" if allowed is None else f"; {allowed:.0f} ms are allowed"
    print(f"{name}: {times[0]:.0f} ms (median), {times[1]:.0f} ms (most){most}", flush=True)


def on_committed_runs() -> None:
    """What the page and the table ask for."""
    for name in sketched_runs():
        run = runs.find_run(name)
        batch, sketch = read_gradients(run, last_sketch(run))
        moved = iter(at_threshold(preset("decoupled_token_is"), 1 + 0.01 * n) for n in range(1, 1000))

        def answer() -> object:
            return report(batch, sketch, next(moved))  # noqa: B023 called before the next run is read

        printed(f"{name}, a moved threshold", milliseconds(answer, 20), 50)
        of_all = milliseconds(lambda: all_ranked(batch, sketch), 3)  # noqa: B023
        printed(f"{name}, all {len(PRESETS)} presets, 200 bootstrap samples", of_all, 1000)


def all_ranked(batch: TokenBatch, sketch: Sketch) -> Ranking:
    return compare(batch, sketch, [entry.config for entry in PRESETS.values()])


def narrow_biases(ranking: Ranking) -> str:
    """How many presets have a bias that is known."""
    biases = [of_one.relative_bias for of_one in ranking.reports]
    narrow = sum(bias.high - bias.low <= max(0.1, 0.4 * bias.value) for bias in biases)
    return f"{narrow} of {len(biases)} presets have a bias interval within max(0.1, 0.4 × value)"


def what_is_told() -> None:
    """How many presets have a bias that is known, and how many pairs differ in η for sure."""
    for name in sketched_runs():
        run = runs.find_run(name)
        ranking = all_ranked(*read_gradients(run, last_sketch(run)))
        line = f"{name}: {narrow_biases(ranking)}"
        for place, size in enumerate(BATCH_SIZES):
            pairs = itertools.combinations(ranking.progress[:, place], 2)
            line += f"; {sum(difference(a, b).tells for a, b in pairs):,} pairs told apart in η({size})"
        print(line, flush=True)


def on_many_tokens() -> None:
    batch, sketch = example()
    caps = [CorrectionConfig(rollout_is="token", rollout_is_threshold=1 + 4 * n / POINTS) for n in range(POINTS)]
    size = f"{ROWS * COLUMNS:,} tokens × {DIRECTIONS} directions, {torch.get_num_threads()} threads"
    printed(f"report of one preset, {size}", milliseconds(lambda: report(batch, sketch, caps[0]), 20))
    printed(f"sweep over {POINTS} thresholds, {size}", milliseconds(lambda: compare(batch, sketch, caps), 3))


def of_recording() -> None:
    """Of the step's own answers; and of every likely answer to 64 prompts with 32 directions."""
    one_step = ("train", "--model", str(WARM_START), "--steps", "1", "--eval-prompts", "8", "--sketch.every", "1")
    few = ("--sketch.directions", "32", "--sketch.places", "1")
    for name, options in (
        ("256 sequences, 512 directions", ()),
        (f"and every likely answer to {EXACT_PROMPTS} prompts, 32 directions; 240 s are allowed",
         (*few, "--sketch.exact-prompts", str(EXACT_PROMPTS))),
    ):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            done = rlcorr(*one_step, *options, "--run", "r", runs_folder=Path(folder), timeout=1800)
            assert done.returncode == 0, done.stderr[-2000:]
            (row,) = runs.read_metrics(Path(folder) / "local" / "r")
        print(f"sketch of a step, addition, {name}: {row['timing/sketch']:.0f} s", flush=True)


def main() -> None:
    on_committed_runs()
    what_is_told()
    on_many_tokens()
    of_recording()
