"""`make bench ARGS=sgd`: part D of runs/study/smol.md, a cap on the product with SGD at the step length of AdamW.

AdamW divides each gradient by its own recent size. So its steps stay as long where a correction leaves hardly any
gradient, and then follow noise; SGD's would shrink. Here both make steps of the same length from answers of weights
that are six updates old, so only their directions differ. Ten steps, three seeds, half an hour on two cores.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import ttest_1samp
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from rlcorr.command.study_workers import arm_config
from rlcorr.records import runs
from rlcorr.records.study import find_study
from rlcorr.train.loop import train

STEPS, SEEDS = 10, (10, 11, 12)
NO_GRADIENT = 1e-30
"""Length that a gradient of zeros is taken for; SGD's is, once every answer has the same reward."""
Hook = Callable[[Optimizer, Any, Any], None]


def main() -> None:
    print("| seed | optimizer | reward, steps 1 to 6 | reward, steps 7 to 10 | greedy accuracy at the end |", end="")
    print(" gradient norm, first and last step | length of a step, first and last |\n|---|---|---|---|---|---|---|")
    differences: dict[str, list[float]] = {"reward of the last four steps": [], "greedy accuracy at the end": []}
    for seed in SEEDS:
        lengths: list[float] = []
        with hooked(*measuring(lengths)):
            adamw = rows_of(seed)
        print(line(seed, "AdamW", adamw, lengths), flush=True)
        with hooked(descending(iter(lengths))):
            sgd = rows_of(seed)
        print(line(seed, "SGD", sgd, lengths), flush=True)
        differences["reward of the last four steps"].append(late_reward(sgd) - late_reward(adamw))
        differences["greedy accuracy at the end"].append(sgd[-1]["accuracy"] - adamw[-1]["accuracy"])
    for name, values in differences.items():
        low, high = ttest_1samp(values, 0).confidence_interval()
        print(f"{name}, SGD minus AdamW, paired by seed: {fmean(values):.3f} [{low:.3f}, {high:.3f}]")


def rows_of(seed: int) -> list[dict[str, Any]]:
    """Train `product_cap_normalized` of the study for its first steps, and return their metrics."""
    arms = find_study("smol_stale_6").arms
    arm = next(arm for arm in arms if (arm.name, arm.seed) == ("product_cap_normalized", seed))
    config = replace(
        arm_config(arm), steps=STEPS, eval_every=STEPS, eval_prompts=128, checkpoint_every=0, tensorboard=False,
        save_model=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        runs.LOCAL = Path(folder)
        return runs.read_metrics(train(config))


@contextmanager
def hooked(before: Hook, after: Hook | None = None) -> Iterator[None]:
    """Call the functions before and after each step of any optimizer."""
    handles = [register_optimizer_step_pre_hook(before)]
    if after is not None:
        handles.append(register_optimizer_step_post_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measuring(lengths: list[float]) -> tuple[Hook, Hook]:
    """Return hooks that append the length of each step."""
    before: list[Tensor] = []

    def keep(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        before[:] = [weights.detach().clone() for weights in trained(optimizer)]

    def measure(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        moved = [new.detach() - old for new, old in zip(trained(optimizer), before, strict=True)]
        lengths.append(length(moved))
        before.clear()

    return keep, measure


def descending(lengths: Iterator[float]) -> Hook:
    """Return a hook that makes a step of this length against the gradient, and leaves nothing for the optimizer."""

    @torch.no_grad()
    def step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        weights = trained(optimizer)
        gradients = [tensor.grad for tensor in weights if tensor.grad is not None]
        scale = next(lengths) / max(length(gradients), NO_GRADIENT)
        for tensor, gradient in zip(weights, gradients, strict=True):
            tensor.sub_(gradient, alpha=scale)
            tensor.grad = None

    return step


def trained(optimizer: Optimizer) -> list[Tensor]:
    return [weights for group in optimizer.param_groups for weights in group["params"]]


def length(tensors: list[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(x.double()) for x in tensors])))


def late_reward(rows: list[dict[str, Any]]) -> float:
    return fmean(row["reward"] for row in rows[6:STEPS])


def line(seed: int, name: str, rows: list[dict[str, Any]], lengths: list[float]) -> str:
    cells = [
        f"{seed}",
        name,
        f"{fmean(row['reward'] for row in rows[:6]):.3f}",
        f"{late_reward(rows):.3f}",
        f"{rows[-1]['accuracy']:.2f}",
        f"{rows[0]['grad_norm']:.3g}, {rows[-1]['grad_norm']:.3g}",
        f"{lengths[0]:.3g}, {lengths[-1]:.3g}",
    ]
    return f"| {' | '.join(cells)} |"
