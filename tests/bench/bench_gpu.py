"""`make bench ARGS=gpu`: the whole correction with its metrics on a GPU, in plain PyTorch."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from rlcorr import TokenBatch, evaluate, preset

SHAPES = ((512, 2048), (1024, 8192))
PRESETS = ("decoupled_token_is", "decoupled_seq_is_rs", "decoupled_k3_rs")
WARM_UP, TIMES = 3, 15


def bench_gpu() -> None:
    if not torch.cuda.is_available():
        print("torch sees no GPU on this machine.")
        return
    print(torch.cuda.get_device_name())
    for rows, columns in SHAPES:
        batch = batch_on_gpu(rows, columns)
        for name in PRESETS:
            correction = preset(name)
            seconds = [timed(partial(evaluate, batch, correction)) for _ in range(WARM_UP + TIMES)][WARM_UP:]
            middle = statistics.median(seconds)
            print(
                f"{rows}×{columns} {name}: {1e3 * middle:.1f} ms [{1e3 * min(seconds):.1f}, {1e3 * max(seconds):.1f}], "
                f"{rows * columns / middle / 1e6:.0f} million positions per second"
            )


def batch_on_gpu(rows: int, columns: int) -> TokenBatch:
    rng = torch.Generator("cuda").manual_seed(0)
    rollout = -torch.rand(rows, columns, generator=rng, device="cuda") * 3
    old = (rollout + 0.03 * torch.randn(rows, columns, generator=rng, device="cuda")).clamp(max=0)
    return TokenBatch(torch.ones_like(rollout, dtype=torch.bool), rollout, old_log_probs=old)


def timed(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start
