"""Measure the sweep: `python tests/bench/bench_sweep.py` prints times to index a million tokens, and to ask once."""

import math
import statistics
import time
from collections.abc import Callable

import torch

from rlcorr.analysis.sweep import Sweep, sweep_rule, sweep_weights
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

ROWS, COLUMNS = 512, 2048
KINDS: dict[str, Callable[[TokenBatch], Sweep]] = {
    "token weight, truncate": lambda batch: sweep_weights(batch, "token"),
    "token weight, mask": lambda batch: sweep_weights(batch, "token", "mask"),
    "sequence rule, seq_mean_k1": lambda batch: sweep_rule(batch, RejectionRule.named("seq_mean_k1", upper=2.0)),
    "token rule, token_k3": lambda batch: sweep_rule(batch, RejectionRule.named("token_k3", upper=2.0)),
}


def made_up() -> TokenBatch:
    """Every column a token; log-ratios with a spread of 0.05."""
    some = torch.Generator().manual_seed(0)
    rollout = -3 * torch.rand(ROWS, COLUMNS, generator=some)
    old = (rollout + 0.05 * torch.randn(ROWS, COLUMNS, generator=some)).clamp(max=0)
    return TokenBatch.from_log_probs(old, rollout, torch.ones(ROWS, COLUMNS))


def times(call: Callable[[int], object], repeats: int) -> list[float]:
    """Seconds, ascending."""
    seconds = []
    for i in range(repeats):
        start = time.perf_counter()
        call(i)
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)


def main(repeats: int = 7, queries: int = 2000) -> None:
    """Smallest and median milliseconds to index; smallest, median and 95th percentile microseconds of one query."""
    batch = made_up()
    print(f"{batch.response_mask.numel():,} tokens, {torch.get_num_threads()} threads")
    uppers = torch.linspace(1.0, 2.0, 200, dtype=torch.float64)
    for name, make in KINDS.items():
        index = make(batch)
        built = times(lambda _, make=make: make(batch), repeats)
        asked = times(lambda i, index=index: index.at(math.exp(0.0005 * (i % 1000))), queries)
        curve = times(lambda _, index=index: index.curve(uppers), 50)
        print(
            f"{name:27s} index {built[0] * 1e3:4.0f} ms, median {statistics.median(built) * 1e3:4.0f} · "
            f"query {asked[0] * 1e6:4.0f} µs, median {statistics.median(asked) * 1e6:4.0f}, "
            f"p95 {asked[int(0.95 * (queries - 1))] * 1e6:4.0f} · "
            f"curve of 200 {curve[0] * 1e3:.1f} ms, median {statistics.median(curve) * 1e3:.1f}"
        )


if __name__ == "__main__":
    main()
