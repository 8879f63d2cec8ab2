"""`make bench ARGS=library`: the whole correction with its metrics, beside verl's own helper in the same process; and
the drop-in for that helper, the whole call.

Each setting of the allocator is a process of its own: by default glibc gives large blocks back to the system as they
are freed, and every new one is zeroed page by page; "kept" holds on to them, as a long training does.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import verl_peer

from rlcorr import TokenBatch, evaluate, metrics, preset
from rlcorr.correction import old_log_probs
from rlcorr.measuring.measure import FUSE, correct_and_measure
from rlcorr.recorders import verl_helper

KEPT = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_TOP_PAD_": "64000000"}
ALLOCATORS = {"default": {}, "kept": KEPT}
SHAPES = ((512, 2048), (2048, 4096))
VERL = {
    "decoupled_token_is": {"rollout_is": "token"},
    "decoupled_seq_is_rs": {"rollout_is": "sequence", "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    "decoupled_geo_rs_token_tis": {
        "rollout_is": "token",
        "rollout_rs": "seq_mean_k1",
        "rollout_rs_threshold": "0.999_1.001",
    },
}
# The same work at the least: 9 bytes read (two floats, a mask), 10 written (log-ratio, weight, keep, rule).
BYTES = 19


FUSED = torch.compile(correct_and_measure, options=FUSE)


def batch(rows: int, columns: int) -> TokenBatch:
    rng = torch.Generator().manual_seed(0)
    rollout = -torch.rand(rows, columns, generator=rng) * 3 - 0.2
    old = rollout + 0.02 * torch.randn(rows, columns, generator=rng)
    lengths = torch.randint(columns // 2, columns + 1, (rows, 1), generator=rng)
    return TokenBatch(torch.arange(columns) < lengths, rollout, old_log_probs=old)


def best(runs: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Seconds of the fastest of several rounds, after one that warms up. In a round each run has its turn, so that a
    neighbour of this machine slows all of them."""
    seconds: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(times + 1):
        for label, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[label].append(time.perf_counter() - start)
    return {label: min(taken[1:]) for label, taken in seconds.items()}


def bandwidth(size: int) -> float:
    """Bytes read and written per second by copying a block of this many bytes."""
    source, target = torch.zeros(size // 4), torch.zeros(size // 4)
    return 2 * size / best({"copy": lambda: target.copy_(source)}, 7)["copy"]


def helper(given: TokenBatch, mask: torch.Tensor, options: dict[str, Any]) -> dict[str, float]:
    """The whole call of the function that takes the place of verl's, with verl's arguments and results."""
    of = verl_helper.compute_rollout_correction_and_rejection_mask
    return of(old_log_probs(given), given.rollout_log_probs, mask, **options)[2]


def measure_all(allocator: str) -> None:
    for rows, columns in SHAPES:
        given, positions = batch(rows, columns), rows * columns
        mask, times = given.response_mask.long(), 30 if rows < 1000 else 8
        floor = bandwidth(BYTES * positions // 2) / BYTES
        for name, options in VERL.items():
            config = preset(name)
            runs = {
                "verl": lambda given=given, mask=mask, options=options: verl_peer.verl_correction(
                    old_log_probs(given), given.rollout_log_probs, mask, **options
                ),
                "plain": lambda given=given, config=config: evaluate(given, config)[1],
                "compiled": lambda given=given, config=config: metrics(FUSED(given, config)[1]),
                "helper": lambda given=given, mask=mask, options=options: helper(given, mask, options),
            }
            rate = {label: positions / taken / 1e6 for label, taken in best(runs, times).items()}
            rates = " | ".join(f"{rate[label]:.0f}" for label in runs)
            times_verl = " | ".join(f"{rate[label] / rate['verl']:.1f}×" for label in [*runs][1:])
            over = floor / 1e6 / rate["compiled"]
            print(f"| {allocator} | {rows}×{columns} | {name} | {rates} | {times_verl} | {over:.1f} |", flush=True)


def main() -> None:
    print(f"million positions per second, {torch.get_num_threads()} threads, float32, every metric as a number")
    print("helper: our drop-in for verl's, the whole call, without a compiler; the goals are 5× and 1.5× verl")
    columns = ("allocator", "batch", "preset", "verl", "plain", "compiled", "helper", "plain/verl", "compiled/verl")
    columns += ("helper/verl", "memory floor/compiled")
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|", flush=True)
    for allocator, settings in ALLOCATORS.items():
        subprocess.run([sys.executable, __file__, allocator], env={**os.environ, **settings}, check=True)


if __name__ == "__main__":
    measure_all(sys.argv[1])
