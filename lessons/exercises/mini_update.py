"""Checks of the loop of mini.py: one step, with the mistakes that people make in it, and the queue of old weights."""

import copy
import functools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from count_on import PROMPTS, Policy, reward
from exercises.mini_checks import Sample, draw, make_policy, score
from torch import Tensor
from torch.optim import Optimizer

from rlcorr import CorrectionConfig, TokenBatch, correct
from rlcorr.config import LossConfig
from rlcorr.losses.advantages import leave_one_out
from rlcorr.losses.objective import policy_loss
from rlcorr.teaching.check import Exercise

# --- update ---

Update = Callable[..., float]
TOKEN = CorrectionConfig(rollout_is="token")


def course(update: Update, pieces: SimpleNamespace) -> Callable[[float, int, int], dict[str, Any]]:
    """Return the mean rewards of three steps of `update` with these pieces, and a bias of the network after them.

    The ratios are capped at `cap`, and the engine is `lag` steps old.
    """

    def course_of(cap: float, lag: int, seed: int) -> dict[str, Any]:
        policy, generator = make_policy(seed), torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(policy.parameters(), 2e-2)
        prompts, rewards = torch.arange(PROMPTS).repeat_interleave(4), []
        versions = deque([copy.deepcopy(policy)], maxlen=lag + 1)
        for _ in range(3):
            rewards.append(update(pieces, policy, versions[0], optimizer, prompts, generator, _up_to(cap)))
            versions.append(copy.deepcopy(policy))
        return {"mean rewards": rewards, "last bias of the network": policy.state_dict()["head.2.bias"].clone()}

    return course_of


def _up_to(cap: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda trainer_logp, engine_logp, mask: (
        (trainer_logp - engine_logp).where(mask, -math.inf).exp().clamp(max=cap)
    )


def update_exercise(sample: Sample = draw) -> Exercise:
    """Return the exercise about `update`. Its answers are drawn by `sample`: other code draws other random numbers."""

    def changed(**faults: Any) -> Callable[[float, int, int], dict[str, Any]]:
        return course(functools.partial(_step, **faults), SimpleNamespace(sample=sample))

    return Exercise(
        expected=changed(),
        cases=((2.0, 0, 0), (2.0, 2, 1), (1.1, 2, 2)),
        mistakes=tuple((changed(**faults), message) for faults, message in MISTAKES),
    )  # fmt: skip


MISTAKES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"swapped": True}, "The weights are inverted: `weight_fn` gets the trainer's log-probs first, then the engine's."),
    ({"steps": False}, "The weights of the network never change: after `backward()`, call `optimizer.step()`."),
    (
        {"baseline": "none"},
        "The loss got the raw rewards. Subtract the mean of the other answers to the same prompt: `advantages`.",
    ),
    (
        {"baseline": "batch"},
        "The mean of the whole batch was subtracted. Compare answers to the same prompt: "
        "`rewards.view(PROMPTS, -1)` has a row for each.",
    ),
    (
        {"baseline": "columns"},
        "The rows of `view` mix prompts. The answers to one prompt are neighbours, so it is `view(PROMPTS, -1)`, not "
        "`view(-1, PROMPTS)`.",
    ),
    (
        {"scorer": "engine"},
        "`trainer_logp` was computed by the engine, so every ratio is 1. The policy must score the engine's tokens.",
    ),
    ({"sampler": "policy"}, "The policy drew its own answers. They come from the engine, which may be older."),
    ({"clear": False}, "The gradients of earlier steps are still there: `optimizer.zero_grad()` before `backward()`."),
    ({"sign": -1}, "The reward goes down: the sign of the advantage or of the loss is wrong."),
    ({"weighted": False}, "The weights are not used: `loss` needs what `weight_fn` returns, times `clipped`."),
    ({"loss_type": "gpg"}, "`clipped` is missing, or 1: at the second epoch the policy has moved, and π/p counts."),
    (
        {"again": True},
        "The weights were computed again at the second epoch. They compare engine and trainer, and stay; `clipped` has "
        "the rest, and would count it twice.",
    ),
    ({"epochs": 1}, "There was one optimizer step. A batch is used for EPOCHS = 2 of them."),
    ({"padded": True}, "Padding was counted: give `weight_fn` and `loss` the mask that `sample` returned."),
)


def _step(
    pieces: SimpleNamespace, policy: Policy, engine: Policy, optimizer: Optimizer, prompts: Tensor,
    generator: torch.Generator, weight_fn: Any, *, swapped: bool = False, steps: bool = True, baseline: str = "others",
    scorer: str = "policy", sampler: str = "engine", clear: bool = True, sign: int = 1, weighted: bool = True,
    loss_type: Any = "ppo_clip", again: bool = False, epochs: int = 2, padded: bool = False,
) -> float:  # fmt: skip
    """Train by the library's loss, with none or one of the faults."""
    tokens, engine_logp, mask = pieces.sample(policy if sampler == "policy" else engine, prompts, generator)
    rewards = reward(prompts, tokens, mask)
    mask = mask | padded
    trainer_logp = score(engine if scorer == "engine" else policy, prompts, tokens).detach()
    advantage = sign * _advantage(rewards, prompts, baseline)[:, None].expand_as(trainer_logp)
    batch = TokenBatch(mask, engine_logp, old_log_probs=trainer_logp, advantages=advantage)
    result, config = correct(batch, TOKEN), replace(TOKEN, loss_type=loss_type)
    pair = (engine_logp, trainer_logp) if swapped else (trainer_logp, engine_logp)
    weights = weight_fn(*pair, mask) if weighted else mask.double()
    for _ in range(epochs):
        new_logp = score(policy, prompts, tokens)
        weights = weight_fn(new_logp.detach(), engine_logp, mask) if again else weights
        value, _ = policy_loss(new_logp, batch, replace(result, weights=weights), config, LossConfig())
        if clear:
            optimizer.zero_grad()
        value.backward()
        if steps:
            optimizer.step()
    return float(rewards.mean())


def _advantage(rewards: Tensor, prompts: Tensor, baseline: str) -> Tensor:
    if baseline == "none":
        return rewards
    if baseline == "batch":
        return rewards - rewards.mean()
    groups = torch.arange(len(rewards)) // PROMPTS if baseline == "columns" else prompts
    return leave_one_out(rewards, groups)


UPDATE = update_exercise()

# --- train ---


class CountingPolicy:
    """Stands for a policy: its only weight is the number of its updates."""

    def __init__(self) -> None:
        self.version = 0


def versions_used(train: Callable[..., list[float]]) -> Callable[[int, int], list[float]]:
    """Return the versions of the engine in every step of `train`, for a policy that counts its updates."""

    def used(lag: int, steps: int) -> list[float]:
        policy = CountingPolicy()

        def step(engine: CountingPolicy) -> float:
            version = engine.version
            policy.version += 1
            return float(version)

        return train(policy, lag, steps, step)

    return used


def _queue(length: Callable[[int], int], index: int = 0) -> Callable[..., list[float]]:
    def train(policy: Any, lag: int, steps: int, step: Callable[[Any], float]) -> list[float]:
        versions, history = deque([copy.deepcopy(policy)], maxlen=length(lag)), []
        for _ in range(steps):
            history.append(step(versions[index]))
            versions.append(copy.deepcopy(policy))
        return history

    return train


TRAIN = Exercise(
    expected=lambda lag, steps: [float(max(step - lag, 0)) for step in range(steps)],
    cases=((2, 6), (0, 3), (5, 4)),
    mistakes=(
        (versions_used(_queue(lambda lag: max(lag, 1))),
         "The queue is one too short: for a lag of 2 it has three versions, the newest and two older ones."),
        (versions_used(_queue(lambda lag: lag + 1, index=-1)),
         "The engine always has the newest weights. Either you took the newest version (the oldest of a deque is at "
         "index 0), or all versions are one object that is trained on: put a `copy.deepcopy` into the queue."),
        (versions_used(_queue(lambda lag: lag + 2)),
         "The queue is one too long: with `maxlen=lag + 1` the oldest version is `lag` steps old."),
        (versions_used(_queue(lambda lag: 1000)),
         "The engine never gets new weights. `deque(maxlen=lag + 1)` forgets the oldest version by itself."),
    ),
)  # fmt: skip
