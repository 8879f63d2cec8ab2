"""Numbers that must not reach the weights: what is counted at each step, and when training stops."""

import math
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.update import SKIPPED
from rlcorr.types import TokenBatch

BAD = ("bad/log_probs", "bad/rewards", *SKIPPED)
"""Counts of one step: log-probs of the engine that are not finite, rewards that raised or are not finite, and optimizer
steps that were skipped. Any of them makes it a bad step."""


def summary(batch: TokenBatch) -> dict[str, Any]:
    """What can be said of a batch before anything else looks at it."""
    assert batch.rewards is not None
    fine = batch.rewards.isfinite()
    lengths = batch.response_mask.sum(-1).float()
    bad = (~batch.rollout_log_probs.isfinite() & batch.response_mask).sum()
    return {
        "reward": float(batch.rewards[fine].double().mean()) if bool(fine.any()) else 0.0,
        "response_length": float(lengths.mean()),
        **dict.fromkeys(BAD, 0),
        "bad/log_probs": int(bad),
        "bad/rewards": int((~fine).sum()),
    }


REMEDIES = {
    "bad/log_probs": "the engine reports log-probs that are not finite: try --rollout.dtype float32 or bfloat16",
    "bad/rewards": "the reward function raises or returns what is not a number: its message is above",
    "bad/loss": "the loss is not finite: try a smaller learning rate, or a bounded correction",
    "bad/gradient": "the gradient is not finite: try a smaller learning rate, and no --optim.precision float16",
    "bad/all_rejected": "the correction rejects every token: widen the bounds of its rules, or look at the mismatch",
}


def refuse_streak(config: TrainConfig, bad_steps: int, row: dict[str, Any]) -> None:
    if bad_steps >= config.max_bad_steps:
        reasons = "; ".join(REMEDIES[name] for name in BAD if row[name])
        raise UsageError(
            f"updates were skipped in {bad_steps} steps in a row; training stops at step {row['step']}: {reasons}."
        )


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {name: value for name, value in row.items() if math.isfinite(value)}
