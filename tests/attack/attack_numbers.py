"""Batches of extreme numbers, through every preset and every loss: a finite weight and loss, or a `UsageError`."""

import itertools
import math
import warnings
from dataclasses import replace
from random import Random
from typing import get_args

import torch
from attempts import Attack

from rlcorr import PRESETS, TokenBatch, correct, evaluate
from rlcorr.config import LossConfig, LossType
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss

TRIED = 6000
LOG_PROBS = (0.0, -1e-45, -1e-8, -1e-3, -0.5, -1.0, -20.0, -100.0, -5000.0, -6e4)
REFUSED = (math.nan, math.inf, 1.0, 1e30)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ADVANTAGES = (0.0, 1.0, -1.0, 1e-30, 1e4, -1e4)


def tensor(chance: Random, size: tuple[int, ...], values: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    numbers = [chance.choice(values) for _ in range(math.prod(size))]
    return torch.tensor(numbers, dtype=torch.float64).reshape(size).to(dtype)


def batch(chance: Random) -> TokenBatch:
    """Return a batch of few values. Raises `UsageError` if it is refused, as it should be for some of them."""
    size = (chance.choice([1, 2, 3]), chance.choice([1, 2, 6]))
    dtype = chance.choice(DTYPES)
    extreme = () if dtype == torch.float16 else (-1e30, -3e38, -math.inf)
    values = (*LOG_PROBS, *extreme, *(REFUSED if chance.random() < 0.2 else ()))
    few = tuple(chance.sample(values, chance.choice([1, 2, 3, len(values)])))
    old, rollout = (tensor(chance, size, few, dtype) for _ in range(2))
    mask = tensor(chance, size, chance.choice([(1.0,), (0.0, 1.0), (0.0, 1.0, math.nan, 0.5)]), torch.float32)
    made = TokenBatch.from_log_probs(old, rollout, mask if chance.random() < 0.2 else mask.nan_to_num(1) > 0.25)
    made.check_values()
    advantages = tensor(chance, size, ADVANTAGES, torch.float32)
    return made.replace(advantages=advantages, group_ids=torch.arange(size[0]) // 2)


def problem_of(chance: Random, preset: str, loss_type: LossType) -> str | None:
    """Correct a batch and compute its loss, and return what is not finite."""
    try:
        made = batch(chance)
        correction = replace(PRESETS[preset].config, loss_type=loss_type)
        result, metrics = correct(made, correction), evaluate(made, correction)[1]
        theta = made.rollout_log_probs.nan_to_num().clamp(min=-6e4, max=0).flip(0).clone().requires_grad_()
        generator = torch.Generator().manual_seed(chance.randrange(2**31))
        loss, _ = policy_loss(theta, made, result, correction, LossConfig(), generator=generator)
        loss.backward()
    except UsageError:
        return None
    except Exception as error:
        return f"Traceback: {error!r}"
    assert theta.grad is not None
    if not bool(result.weights.isfinite().all()) or bool(result.weights[~made.response_mask].any()):
        return f"weights {result.weights.tolist()}"
    if not math.isfinite(loss.item()):
        return f"loss {loss.item()}"
    if bool(theta.grad.isnan().any()) or (theta.dtype != torch.float16 and not bool(theta.grad.isfinite().all())):
        return f"gradient {theta.grad.tolist()}"
    wrong = [name for name, value in metrics.items() if math.isnan(value) and "kept" in name]
    return f"metrics {wrong}" if wrong else None


def attack(attack: Attack) -> None:
    """Take every pair of a preset and a loss in turn."""
    warnings.simplefilter("error")  # torch warns where a number becomes another
    pairs = [*itertools.product(sorted(PRESETS), get_args(LossType))]
    for number, chance in attack.attempts(TRIED):
        preset, loss_type = pairs[number % len(pairs)]
        attack.judge(number, f"{preset}, {loss_type}", problem_of(chance, preset, loss_type))
