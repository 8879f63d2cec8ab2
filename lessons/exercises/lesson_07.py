"""Check the exercises of lesson 07."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

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
        Mistake(
            _rule(_product),
            "That bounds the product. The geometric mean is its root: divide Σ d by the number of tokens.",
        ),
        Mistake(
            _rule(_inverse),
            "Your ratio is engine over trainer. The bounds are on trainer over engine. (verl's k1 is −log r, so its "
            "bounds are on the ratio that you took.)",
        ),
        Mistake(
            _rule(_logarithm),
            "You compared the mean of d with the bounds. It is the logarithm of the geometric mean: take exp first.",
        ),
        Mistake(
            _rule(_arithmetic_mean),
            "That is the mean of the ratios. A half and a two average to 1.25, but their product is 1.",
        ),
        Mistake(
            _rule(_each),
            "That looks at each token alone. A rule on the answer keeps or drops all of its tokens.",
        ),
        *(Mistake(_rule(_strict(*ends)), EXACTLY_AT_A_BOUND) for ends in ((True, True), (True, False), (False, True))),
        Mistake(_whole_width, "The mean runs over the padded width. Divide by the number of real tokens of each row."),
        Mistake(
            lambda old, rollout, mask, lower, upper: _vectorised(old, rollout, mask, lower, upper).any(-1),
            "One truth per answer came back. A mask has one per token: repeat it, and leave padding False.",
        ),
    ),
)


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
        Mistake(
            lambda q, keep: q * keep,
            "It does not add up to 1. Divide by the kept share, which is the sum of what you have.",
        ),
        Mistake(
            lambda q, keep: q / q.sum(),
            "Rejected actions still have a probability. Multiply by the mask before you sum.",
        ),
        Mistake(
            lambda q, keep: q / q[keep].sum(),
            "The sum is right. Rejected actions must have none of it: use the mask above as well.",
        ),
        Mistake(
            lambda q, keep: keep.double() / keep.sum().clamp(min=1),
            "Every kept action got the same probability. Their proportions stay those of q.",
        ),
        Mistake(
            lambda q, keep: (q * keep).softmax(-1),
            "A softmax gives the rejected actions some probability, too. They must have none: divide by the sum.",
        ),
        Mistake(
            lambda q, keep: q * keep / keep.sum().clamp(min=1),
            "You divided by the number of kept actions. Divide by the sum of their probabilities.",
        ),
        Mistake(
            lambda q, keep: q * keep / (q * keep).sum(),
            "Right if something is kept. If nothing is, the kept share is 0: return zeros, not nan.",
        ),
    ),
)


def _loss(loss: Tensor, mask: Tensor, keep: Tensor, denominator: str) -> float:
    total, counted = 0.0, 0
    for value, real, stays in zip(
        loss.flatten().tolist(), mask.flatten().tolist(), keep.flatten().tolist(), strict=True
    ):
        total += value if real and stays else 0.0
        counted += bool(real and (stays or denominator == "fixed"))
    return total / counted if counted else 0.0


_LOSS = torch.tensor([[1.0, 2.0, 3.0, NAN], [6.0, 8.0, NAN, NAN]], dtype=torch.float64)
_MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])
_KEEP = torch.tensor([[True, True, True, False], [False, False, False, False]])
_SOME = torch.tensor([[True, False, True, False], [False, True, False, False]])

MASKED_LOSS = Exercise(
    expected=_loss,
    cases=(
        (_LOSS, _MASK, _KEEP, "fixed"),
        (_LOSS, _MASK, _KEEP, "kept"),
        (_LOSS, _MASK, _SOME, "fixed"),
        (_LOSS, _MASK, _SOME, "kept"),
        (_LOSS, _MASK, _MASK, "kept"),
        (_LOSS, _MASK, torch.zeros_like(_MASK), "kept"),
    ),
    mistakes=(
        Mistake(
            lambda loss, mask, keep, denominator: loss[keep].sum() / mask.sum(),
            "The denominator never changes. With 'kept' it counts the kept tokens only.",
        ),
        Mistake(
            lambda loss, mask, keep, denominator: loss[keep].sum() / keep.sum().clamp(min=1),
            "The denominator always counts the kept tokens. With 'fixed' it counts every real one.",
        ),
        Mistake(
            lambda loss, mask, keep, denominator: (
                loss[keep].sum() / (mask.numel() if denominator == "fixed" else keep.sum().clamp(min=1))
            ),
            "Padding is in the denominator. Fixed means every real token: count the mask.",
        ),
        Mistake(
            lambda loss, mask, keep, denominator: loss[keep].sum() / (mask if denominator == "fixed" else keep).sum(),
            "If nothing is kept, the denominator is 0 and the loss nan, and one step makes every weight nan. Return 0.",
        ),
        Mistake(
            lambda loss, mask, keep, denominator: (
                loss[mask].sum() / (mask if denominator == "fixed" else keep).sum().clamp(min=1)
            ),
            "Rejected tokens are still in the sum. The mask of real tokens is not the mask of kept ones.",
        ),
    ),
)


# --- mini.py: the loss ---
