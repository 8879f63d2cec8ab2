"""Numbers that must not reach the weights: their counts at each step, and the limit at which training stops."""

import math
from collections.abc import Sequence
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.update import SKIPPED
from rlcorr.types import TokenBatch

BAD = ("bad/log_probs", "bad/rewards", "bad/no_answers", *SKIPPED)
"""Counts of one step: log-probs of the engine that are not finite, rewards that raised or are not finite, 1 if no
answer may be learned from, and optimizer steps that were skipped. A step with any of them is a bad step."""


def summary(batch: TokenBatch, *, unscored: Sequence[bool], truncated: Sequence[bool]) -> dict[str, Any]:
    """Return the metrics of a batch that are computed first: mean reward, mean length, and counts of bad numbers.

    Args:
        unscored: True if the reward function could not judge the answer, (B,).
        truncated: True if the answer hit the length limit, (B,).
    """
    assert batch.rewards is not None
    finite_rewards = batch.rewards.isfinite()
    lengths = batch.response_mask.sum(-1).float()
    bad = (~batch.rollout_log_probs.isfinite() & batch.response_mask).sum()
    return {
        "reward": float(batch.rewards[finite_rewards].double().mean()) if bool(finite_rewards.any()) else 0.0,
        "response_length": float(lengths.mean()),
        **dict.fromkeys(BAD, 0),
        "bad/log_probs": int(bad),
        "bad/rewards": int((~finite_rewards).sum()) - sum(unscored),  # the reward of an unscored answer is NaN, too
        "bad/no_answers": int(all(unscored)),
        "unscored": sum(unscored),
        "truncated": sum(truncated),
    }


REMEDIES = {
    "bad/log_probs": "the engine reports log-probs that are not finite: try --rollout.dtype float32 or bfloat16",
    "bad/rewards": "the reward function raises an error or returns no finite number: its message is above",
    "bad/no_answers": "no answer may be learned from, because each has a reward of None",
    "bad/loss": "the loss is not finite: try a smaller learning rate, or a bounded correction",
    "bad/gradient": "the gradient is not finite: try a smaller learning rate, and no --optim.precision float16",
    "bad/all_rejected": "the correction rejects every token: widen the bounds of its rules, or look at the mismatch",
}


def refuse_failing_rewards(step: int, rewards: Sequence[float | None]) -> None:
    """Raise `UsageError` if the reward function gave no number for any answer of the first step: it never will.

    Args:
        step: number of the step, from 1. Later steps are skipped instead, because the function has worked before.
        rewards: one per answer; NaN if the function raised, None if it could not judge the answer.
    """
    judged = [reward for reward in rewards if reward is not None]
    if step == 1 and judged and not any(map(math.isfinite, judged)):
        raise UsageError(
            f"the reward function failed on all {len(judged)} answers of the first step, so there is nothing to learn; "
            "its message is above. It must return a number, or None for an answer that it cannot judge."
        )


def refuse_streak(config: TrainConfig, bad_steps: int, row: dict[str, Any]) -> None:
    """Raise `UsageError` after `max_bad_steps` bad steps in a row."""
    if bad_steps >= config.max_bad_steps:
        reasons = "; ".join(REMEDIES[name] for name in BAD if row[name])
        raise UsageError(
            f"updates were skipped in {bad_steps} steps in a row; training stops at step {row['step']}: {reasons}."
        )


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without values that are not finite, because JSON has no NaN."""
    return {name: value for name, value in row.items() if math.isfinite(value)}
