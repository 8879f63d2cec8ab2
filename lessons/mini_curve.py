"""Train with mini.py on several seeds and draw the rewards as text: what `python lessons/mini.py` runs."""

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from count_on import PROMPTS, Policy
from mini_pieces import complete
from torch import nn

ANSWERS = 8
"""Answers to each prompt in a batch."""
LEARNING_RATE = 2e-2
"""Of Adam. Chosen on seeds 0 to 4, so that a fresh engine learns within a hundred steps."""
CAP, BAND = 2.0, (0.5, 2.0)
NOT_CALLED = {"none": ["ratios", "capped", "kept"], "ratios": ["capped", "kept"], "capped": ["ratios", "kept"],
              "kept": ["ratios"]}  # fmt: skip
"""The pieces that a way of weighting does not need. The others are called in every step."""
WIDTH = 50
"""Characters from reward 0 to reward 1."""


def weights_of(mini: SimpleNamespace, way: str, *log_probs_and_mask: torch.Tensor) -> torch.Tensor:
    """Return the weights of one batch. `way` is a key of NOT_CALLED."""
    if way == "none":
        return log_probs_and_mask[-1].double()
    if way == "ratios":
        return mini.ratios(*log_probs_and_mask)
    weights = mini.capped(*log_probs_and_mask, None, CAP)
    return weights * mini.kept(*log_probs_and_mask, *BAND) if way == "kept" else weights


def run(
    mini: SimpleNamespace, way: str, lag: int, steps: int, seed: int, dtype: torch.dtype = torch.float64
) -> list[float]:
    """Train one policy, in float64 so that only `dtype`, the engine's, rounds. Return the reward of every step."""
    torch.manual_seed(seed)  # of the first weights
    generator, policy = torch.Generator().manual_seed(seed), Policy().double()
    for layer in policy.modules():
        if isinstance(layer, nn.Embedding | nn.Linear):
            layer.reset_parameters()  # in float64: in float32 two processors draw numbers with other last digits
    optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
    prompts = torch.arange(PROMPTS).repeat_interleave(ANSWERS)

    def step(engine: Policy) -> float:
        return mini.update(
            mini, policy, engine.to(dtype), optimizer, prompts, generator,
            lambda *log_probs_and_mask: weights_of(mini, way, *log_probs_and_mask),
        )  # fmt: skip

    return mini.train(policy, lag, steps, step)


def picture(histories: Sequence[Sequence[float]], every: int = 5) -> str:
    """Return one line per `every` steps: o is the mean over the seeds, and = reaches from the lowest to the highest.

    >>> print(picture([[0.0], [0.5], [1.0]], every=1))
    step   mean  0                                                  1
       1   0.50  |=========================o=========================|
    """
    lines = [f"step   mean  0{' ' * WIDTH}1"]
    for start in range(0, len(histories[0]), every):
        values = [fmean(history[start : start + every]) for history in histories]
        low, mean, high = (round(WIDTH * value) for value in (min(values), fmean(values), max(values)))
        row = [" " if not low <= column <= high else "o" if column == mean else "=" for column in range(WIDTH + 1)]
        lines.append(f"{start + every:4} {fmean(values):6.2f}  |{''.join(row)}|")
    return "\n".join(lines)


def main(written: Mapping[str, Any], arguments: Sequence[str] | None = None) -> None:
    """Train with the pieces that are `written`, and with the solution's for those that are not."""
    parser = argparse.ArgumentParser(prog="mini.py", description=__doc__)
    parser.add_argument("--lag", type=int, default=0, help="steps by which the engine's weights are older")
    parser.add_argument("--weights", choices=NOT_CALLED, default="none", help="kept: capped, and answers are rejected")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--engine-bf16", action="store_true", help="the engine rounds its weights to bfloat16")
    options = parser.parse_args(arguments)
    mini, dtype = complete(written), torch.bfloat16 if options.engine_bf16 else torch.float64
    print(f"--weights {options.weights} does not call: {', '.join(NOT_CALLED[options.weights])}.")
    histories = [run(mini, options.weights, options.lag, options.steps, seed, dtype) for seed in range(options.seeds)]
    print(picture(histories))
