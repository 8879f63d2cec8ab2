"""What recording costs a training: seconds of its steps with and without a `Recorder`, in pairs; the training has one
core, and the thread that writes another. And how much processor time recording a step takes.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_trainer import WARM_START
from transformers import AutoModelForCausalLM

from rlcorr.recorders import Recorder

PAIRS, STEPS = 24, 4
T_95 = 2.069
"""Student's t for 23 degrees of freedom."""
ROWS, TOKENS = 64, 128


def main() -> None:
    torch.set_num_threads(1)
    train = training()
    train()
    with tempfile.TemporaryDirectory() as folder:
        logs, plain = [], []
        for pair in range(PAIRS):
            took = {order: seconds(train, Path(folder) / f"{pair}" if order else None) for order in turns(pair)}
            logs.append(math.log(took[True] / took[False]))
            plain.append(took[False] / STEPS)
        worked = [processor_seconds(train(), Path(folder), number) for number in range(9)]
    mean, error = statistics.mean(logs), T_95 * statistics.stdev(logs) / math.sqrt(PAIRS)
    low, middle, high = (math.exp(x) for x in (mean - error, mean, mean + error))
    step, work = statistics.median(plain), statistics.median(worked)
    print(
        f"recorder: a step of {step:.2f} s on {ROWS} × {TOKENS} tokens takes {middle:.3f} [{low:.3f}, {high:.3f}] "
        f"times as long where it is recorded ({PAIRS} pairs of {STEPS} steps); recording it takes {1e3 * work:.1f} ms "
        f"of processor time, {work / step:.2%} of the step were there no second core"
    )


def turns(pair: int) -> tuple[bool, bool]:
    """With the recorder first, or without it, in turn."""
    return (True, False) if pair % 2 else (False, True)


def training() -> Callable[[], dict[str, torch.Tensor]]:
    """A step of policy gradient on random tokens, with what would be recorded of it."""
    model = AutoModelForCausalLM.from_pretrained(WARM_START, dtype=torch.float32, local_files_only=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    rng = torch.Generator().manual_seed(0)

    def step() -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 13, (ROWS, TOKENS + 1), generator=rng)
        logits = model(ids).logits[:, :-1]
        log_probs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        optimizer.zero_grad()
        (-log_probs * torch.randn(ROWS, 1, generator=rng)).mean().backward()
        optimizer.step()
        rollout = log_probs.detach() + 0.01 * torch.randn(log_probs.shape, generator=rng)
        ones = torch.ones_like(rollout)
        return {"rollout_log_probs": rollout.clamp(max=0), "old_log_probs": log_probs.detach(), "response_mask": ones}

    return step


def seconds(train: Callable[[], dict[str, torch.Tensor]], run: Path | None) -> float:
    """Of some steps; with `run` each is recorded, and the last of them is written after the clock has stopped."""
    if run is None:
        return timed(train, lambda step, batch: None)
    with Recorder(run.name, folder=run.parent) as recorder:
        return timed(train, lambda step, batch: recorder.add(step=step, batch=batch))


def timed(train: Callable[[], dict[str, torch.Tensor]], take: Callable[[int, dict[str, torch.Tensor]], None]) -> float:
    began = time.perf_counter()
    for step in range(STEPS):
        take(step, train())
    return time.perf_counter() - began


def processor_seconds(batch: dict[str, torch.Tensor], folder: Path, number: int) -> float:
    """Of all threads, from `add` until the step is written."""
    with Recorder(f"run_{number}", folder=folder) as recorder:
        began = time.process_time()
        recorder.add(step=0, batch=batch)
        recorder.add(step=1, batch=batch)  # waits for the first
        return time.process_time() - began


if __name__ == "__main__":
    main()
