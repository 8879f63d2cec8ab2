"""Check the exercises on the policy gradient."""

import math
from functools import partial

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _one_hot(action: Tensor, width: int) -> Tensor:
    return torch.nn.functional.one_hot(action, width).double()


def _score(logits: Tensor, action: Tensor) -> Tensor:
    """1 on the drawn action, minus the probability of each."""
    rows = []
    for row, drawn in zip(logits.tolist(), action.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        rows.append([(1.0 if place == drawn else 0.0) - math.exp(z) / total for place, z in enumerate(row)])
    return torch.tensor(rows, dtype=torch.float64)


SOFTMAX_SCORE = Exercise(
    expected=_score,
    cases=(
        (torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]], dtype=torch.float64).log(), torch.tensor([0, 2])),
        (_random(5, 4, seed=1), torch.tensor([3, 0, 1, 1, 2])),
    ),
    mistakes=(
        (lambda logits, action: logits.softmax(-1) - _one_hot(action, logits.shape[-1]),
         "The sign is wrong: the score of the drawn action is positive for its own logit and negative for all "
         "others."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]),
         "The probabilities are missing. Raising one logit takes probability from all the others, so subtract them."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]) - logits,
         "You subtracted the logits. Subtract the probabilities, the softmax of the logits."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]) - logits.log_softmax(-1),
         "You subtracted the logarithms of the probabilities. Subtract the probabilities."),
        (lambda logits, action: (
             logits.softmax(-1).gather(-1, action[:, None])
             * (_one_hot(action, logits.shape[-1]) - logits.softmax(-1))
         ),
         "This is the derivative of the probability. The derivative of its logarithm has no factor π in front."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]) - logits.softmax(0),
         "You took the softmax over the samples. Each row is a policy: take it over the last dimension."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]) - logits.exp(),
         "e to the power of a logit is no probability yet: divide by the sum of the row, or use softmax."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]) - logits.sigmoid(),
         "You used the sigmoid. With several actions the probabilities are the softmax."),
        (lambda logits, action: -logits.softmax(-1), "The 1 at the sampled action is missing."),
        (lambda logits, action: 1 - logits.softmax(-1),
         "The 1 belongs to the sampled action only. At all others the score is minus the probability."),
        (lambda logits, action: _one_hot(action, logits.shape[-1]) * (1 - logits.softmax(-1)),
         "Only the sampled action has a number. All other logits lower its probability: theirs is "
         "minus the probability."),
        *(
            (answer, "These are the probabilities, or their logarithms. The score is the derivative of one logarithm.")
            for answer in (lambda logits, action: logits.softmax(-1), lambda logits, action: logits.log_softmax(-1))
        ),
        (lambda logits, action: _score(logits, action) / len(logits),
         "You divided by the number of samples. Each sample has a score of its own."),
    ),
)  # fmt: skip


def _best_baseline(reward: Tensor, scores: Tensor) -> float:
    """The average of the rewards, each counted by the squared length of its score."""
    lengths = [sum(x * x for x in row) for row in scores.tolist()]
    return sum(f * n for f, n in zip(reward.tolist(), lengths, strict=True)) / sum(lengths)


def _squares(scores: Tensor) -> Tensor:
    return scores.square().sum(-1)


BEST_BASELINE = Exercise(
    expected=_best_baseline,
    cases=(
        (
            torch.tensor([1.0, 0.0, 4.0, 4.0], dtype=torch.float64),
            torch.tensor(
                [[0.75, -0.25, -0.5], [-0.25, 0.75, -0.5], [-0.25, -0.25, 0.5], [-0.25, -0.25, 0.5]],
                dtype=torch.float64,
            ),
        ),
        (_random(6, seed=2), _random(6, 5, seed=3)),
    ),
    mistakes=(
        (lambda reward, scores: reward.mean(),
         "This is the average reward. It is a baseline, but not the one with the least noise: weight each reward "
         "by ‖s‖²."),
        (lambda reward, scores: (reward * scores.norm(dim=-1)).sum() / scores.norm(dim=-1).sum(),
         "You weighted by the length of the score. A variance contains squares: weight by the squared length."),
        (lambda reward, scores: (reward * _squares(scores)).mean(),
         "Divide by the average of ‖s‖² as well. Without it, the result is not a reward."),
        (lambda reward, scores: (reward / _squares(scores)).sum() / (1 / _squares(scores)).sum(),
         "Answers with long scores cause most of the noise, so they must count more, not less."),
        (lambda reward, scores: (reward * scores.sum(-1) ** 2).sum() / (scores.sum(-1) ** 2).sum(),
         "The squared length of a score is the sum of the squares of its numbers, not the square of their sum."),
    ),
)  # fmt: skip


# --- mini.py: the advantage ---


def _less_the_others(rewards: Tensor) -> Tensor:
    rows = rewards.tolist()
    return torch.tensor([[r - (sum(row) - r) / (len(row) - 1) for r in row] for row in rows], dtype=torch.float64)


def _by_spread(rewards: Tensor, *, correction: int, epsilon: float) -> Tensor:
    """Return GRPO's advantage, with the usual ways to compute its standard deviation."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True, correction=correction) + epsilon)


_NO_SPREAD = (
    "You divided by the standard deviation, as GRPO does. Here only a baseline is asked for: subtract the mean of the "
    "others."
)
_OVER_PROMPTS = (
    lambda rewards: rewards - (rewards.sum(0, keepdim=True) - rewards) / (len(rewards) - 1),
    lambda rewards: rewards - (rewards.sum(0, keepdim=True) - rewards) / (rewards.shape[1] - 1),
    lambda rewards: rewards - rewards.mean(0, keepdim=True),
)

ADVANTAGES = Exercise(
    expected=_less_the_others,
    cases=(
        (torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64),),
        (_random(5, 4, seed=6),),
    ),
    mistakes=(
        (lambda rewards: rewards - rewards.mean(1, keepdim=True),
         "This mean contains the reward itself, which makes every advantage smaller. Take the mean of the others."),
        (lambda rewards: rewards - (rewards.sum() - rewards) / (rewards.numel() - 1),
         "You took the others of the whole batch. Then all answers to an easy prompt have a positive advantage."),
        (lambda rewards: (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1),
         "This is the mean of the others. Subtract it from the reward."),
        (lambda rewards: rewards - (rewards.sum(1, keepdim=True) - rewards) / rewards.shape[1],
         "There are n − 1 others: divide by n − 1."),
        (lambda rewards: rewards - rewards.mean(),
         "You subtracted the mean of the whole batch. Take the other answers to the same prompt."),
        *(
            (answer,
             "You averaged down the columns, over prompts. The answers to one prompt are a row: dim 1.")
            for answer in _OVER_PROMPTS
        ),
        *(
            (partial(_by_spread, correction=n, epsilon=e), _NO_SPREAD)
            for n in (0, 1)
            for e in (0, 1e-8, 1e-6, 1e-4)
        ),
    ),
)  # fmt: skip
