"""Check the exercises on rejection."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan
Rule = Callable[[list[float], float, float], list[bool]]


def logs(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def _answers(old: Tensor, rollout: Tensor, mask: Tensor, lower: float, upper: float, rule: Rule) -> Tensor:
    """A rule that sees the ratios of one answer at a time, and says which of its tokens stay."""
    keep = torch.zeros_like(mask)
    for b in range(len(mask)):
        real = [t for t in range(mask.shape[1]) if mask[b, t]]
        ratios = [math.exp(float(old[b, t] - rollout[b, t])) for t in real]
        for t, stays in zip(real, rule(ratios, lower, upper), strict=True):
            keep[b, t] = stays
    return keep


def _rule(rule: Rule) -> Callable[[Tensor, Tensor, Tensor, float, float], Tensor]:
    """The exercise's function for a rule on the ratios of one answer."""
    return lambda old, rollout, mask, lower, upper: _answers(old, rollout, mask, lower, upper, rule)


def _geometric_mean(ratios: list[float], lower: float, upper: float) -> list[bool]:
    mean = math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0
    return [lower <= mean <= upper] * len(ratios)


def _logarithm(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return [lower <= math.log(math.prod(ratios)) / max(len(ratios), 1) <= upper] * len(ratios)


def _product(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return [lower <= math.prod(ratios) <= upper] * len(ratios)


def _inverse(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return _geometric_mean([1 / r for r in ratios], lower, upper)


def _arithmetic_mean(ratios: list[float], lower: float, upper: float) -> list[bool]:
    mean = sum(ratios) / len(ratios) if ratios else 1.0
    return [lower <= mean <= upper] * len(ratios)


def _strict(at_lower: bool, at_upper: bool) -> Rule:
    """Return the rule on the geometric mean that rejects an answer exactly at a bound, at one of them or at both."""

    def rule(ratios: list[float], lower: float, upper: float) -> list[bool]:
        mean = math.prod(ratios) ** (1 / len(ratios)) if ratios else 1.0
        inside = lower <= mean <= upper
        return [inside and not (at_lower and mean == lower) and not (at_upper and mean == upper)] * len(ratios)

    return rule


def _each(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return [lower <= r <= upper for r in ratios]


def _whole_width(old: Tensor, rollout: Tensor, mask: Tensor, lower: float, upper: float) -> Tensor:
    mean = (old - rollout).where(mask, 0).mean(-1, keepdim=True).exp()
    return mask & (mean >= lower) & (mean <= upper)


def _vectorised(old: Tensor, rollout: Tensor, mask: Tensor, lower: float, upper: float) -> Tensor:
    total = (old - rollout).where(mask, 0).sum(-1, keepdim=True)
    mean = total / mask.sum(-1, keepdim=True).clamp(min=1)
    return mask & (mean >= math.log(lower)) & (mean <= math.log(upper))


def padded_cases(seed: int) -> tuple[Tensor, Tensor, Tensor, float, float]:
    generator = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(6, 5, dtype=torch.float64, generator=generator)
    old = rollout + 0.3 * torch.randn(6, 5, dtype=torch.float64, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 2, 1, 0])[:, None]
    return torch.where(mask, old, NAN), torch.where(mask, rollout, NAN), mask, 0.8, 1.1


_AT_ONE = (
    logs([[0.5, 0.4], [0.6, 0.6], [0.4, 0.4]]),
    logs([[0.5, 0.4], [0.5, 0.5], [0.5, 0.5]]),
    torch.ones(3, 2, dtype=torch.bool),
)
"""The geometric mean of the first answer is 1, without a rounding error."""
EXACTLY_AT_A_BOUND = "An answer exactly at a bound stays: the interval is [lower, upper]. Compare with >= and <=."

GEOMETRIC_RULE = Exercise(
    expected=_rule(_geometric_mean),
    cases=(
        (
            logs([[0.8, 0.4, NAN], [0.4, 0.9, 0.5], [0.9, 0.9, 0.9]]),
            logs([[0.4, 0.8, NAN], [0.4, 0.9, 0.4], [0.5, 0.6, 0.7]]),
            torch.tensor([[True, True, False], [True, True, True], [True, True, True]]),
            0.9,
            1.1,
        ),
        padded_cases(7),
        (logs([[0.5, 0.5]]), logs([[0.25, 0.25]]), torch.tensor([[True, False]]), 0.4, 1.0),
        (*_AT_ONE, 1.0, 1.3),
        (*_AT_ONE, 0.7, 1.0),
    ),
    mistakes=(
        (_rule(_product),
         "That bounds the product. The geometric mean is its root: divide Σ d by the number of tokens."),
        (_rule(_inverse),
         "Your ratio is engine over trainer. The bounds are on trainer over engine. (verl's k1 is −log r, so its "
         "bounds are on the ratio that you took.)"),
        (_rule(_logarithm),
         "You compared the mean of d with the bounds. It is the logarithm of the geometric mean: take exp first."),
        (_rule(_arithmetic_mean),
         "That is the mean of the ratios. A half and a two average to 1.25, but their product is 1."),
        (_rule(_each),
         "That looks at each token alone. A rule on the answer keeps or drops all of its tokens."),
        *((_rule(_strict(*ends)), EXACTLY_AT_A_BOUND) for ends in ((True, True), (True, False), (False, True))),
        (_whole_width,
         "The mean runs over the padded width. Divide by the number of real tokens of each row."),
        (lambda old, rollout, mask, lower, upper: _vectorised(old, rollout, mask, lower, upper).any(-1),
         "One truth per answer came back. A mask has one per token: repeat it, and leave padding False."),
    ),
)  # fmt: skip


def _trained_distribution(q: Tensor, keep: Tensor) -> Tensor:
    kept = [x if stays else 0.0 for x, stays in zip(q.tolist(), keep.tolist(), strict=True)]
    total = sum(kept)
    return torch.tensor([x / total if total else 0.0 for x in kept], dtype=torch.float64)


def probabilities(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


TRAINED_DISTRIBUTION = Exercise(
    expected=_trained_distribution,
    cases=(
        (probabilities(0.5, 0.25, 0.25), torch.tensor([True, True, False])),
        (probabilities(0.7, 0.1, 0.1, 0.1), torch.tensor([False, True, True, False])),
        (probabilities(0.6, 0.4), torch.tensor([True, True])),
        (probabilities(0.6, 0.4), torch.tensor([False, False])),
    ),
    mistakes=(
        (lambda q, keep: q * keep,
         "It does not add up to 1. Divide by the kept share, which is the sum of what you have."),
        (lambda q, keep: q / q.sum(),
         "Rejected actions still have a probability. Multiply by the mask before you sum."),
        (lambda q, keep: q / q[keep].sum(),
         "The sum is right. Rejected actions must have none of it: use the mask above as well."),
        (lambda q, keep: keep.double() / keep.sum().clamp(min=1),
         "Every kept action got the same probability. Their proportions stay those of q."),
        (lambda q, keep: (q * keep).softmax(-1),
         "A softmax gives the rejected actions some probability, too. They must have none: divide by the sum."),
        (lambda q, keep: q * keep / keep.sum().clamp(min=1),
         "You divided by the number of kept actions. Divide by the sum of their probabilities."),
        (lambda q, keep: q * keep / (q * keep).sum(),
         "Right if something is kept. If nothing is, the kept share is 0: return zeros, not nan."),
    ),
)  # fmt: skip
