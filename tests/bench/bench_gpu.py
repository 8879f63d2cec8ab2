"""`make bench ARGS=gpu`: the whole correction with its metrics on a GPU, beside verl's own helper in the same process.

plain: our correction without a compiler.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import verl_peer
from bench_library import VERL, batch

from rlcorr import TokenBatch, evaluate, preset
from rlcorr.correction import old_log_probs

SHAPES = ((512, 2048), (2048, 4096))
WARM_UP, TIMES = 3, 15


def main() -> None:
    if not torch.cuda.is_available():
        print("torch sees no GPU on this machine.")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: milliseconds, medians of {TIMES} [extremes]")
    columns = ("batch", "preset", "verl", "plain")
    print(f"| {' | '.join((*columns, 'plain/verl'))} |")
    print("|---" * (len(columns) + 1) + "|", flush=True)
    for rows, tokens in SHAPES:
        on_gpu = TokenBatch(**{name: tensor.cuda() for name, tensor in batch(rows, tokens).tensors().items()})
        for name, options in VERL.items():
            measure(f"{rows}×{tokens} | {name}", on_gpu, name, options)


def measure(label: str, given: TokenBatch, name: str, options: dict[str, str]) -> None:
    """Print one line of the table."""
    mask = given.response_mask.long()
    runs: dict[str, Callable[[], object]] = {
        "verl": partial(verl_peer.verl_correction, old_log_probs(given), given.rollout_log_probs, mask, **options),
        "plain": partial(evaluate, given, preset(name)),
    }
    seconds = {run: [timed(runs[run]) for _ in range(WARM_UP + TIMES)][WARM_UP:] for run in runs}
    middle = {run: statistics.median(times) for run, times in seconds.items()}
    cells = [f"{1e3 * middle[run]:.1f} [{1e3 * min(seconds[run]):.1f}, {1e3 * max(seconds[run]):.1f}]" for run in runs]
    cells.append(f"{middle['verl'] / middle['plain']:.1f}×")
    print(f"| {label} | {' | '.join(cells)} |", flush=True)


def timed(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start
