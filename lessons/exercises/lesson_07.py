"""What lesson 07 asks for."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

NAN = math.nan
Rule = Callable[[list[float], float, float], list[bool]]


def _logs(rows: list[list[float]]) -> Tensor:
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


def _product(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return [lower <= math.prod(ratios) <= upper] * len(ratios)


def _inverse(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return _geometric_mean([1 / r for r in ratios], lower, upper)


def _arithmetic_mean(ratios: list[float], lower: float, upper: float) -> list[bool]:
    mean = sum(ratios) / len(ratios) if ratios else 1.0
    return [lower <= mean <= upper] * len(ratios)


def _each(ratios: list[float], lower: float, upper: float) -> list[bool]:
    return [lower <= r <= upper for r in ratios]


def _whole_width(old: Tensor, rollout: Tensor, mask: Tensor, lower: float, upper: float) -> Tensor:
    mean = (old - rollout).where(mask, 0).mean(-1, keepdim=True).exp()
    return mask & (mean >= lower) & (mean <= upper)


def _vectorised(old: Tensor, rollout: Tensor, mask: Tensor, lower: float, upper: float) -> Tensor:
    total = (old - rollout).where(mask, 0).sum(-1, keepdim=True)
    mean = total / mask.sum(-1, keepdim=True).clamp(min=1)
    return mask & (mean >= math.log(lower)) & (mean <= math.log(upper))


def _padded_cases(seed: int) -> tuple[Tensor, Tensor, Tensor, float, float]:
    generator = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(6, 5, dtype=torch.float64, generator=generator)
    old = rollout + 0.3 * torch.randn(6, 5, dtype=torch.float64, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 2, 1, 0])[:, None]
    return torch.where(mask, old, NAN), torch.where(mask, rollout, NAN), mask, 0.8, 1.1


GEOMETRIC_RULE = Exercise(
    expected=_rule(_geometric_mean),
    cases=(
        (
            _logs([[0.8, 0.4, NAN], [0.4, 0.9, 0.5], [0.9, 0.9, 0.9]]),
            _logs([[0.4, 0.8, NAN], [0.4, 0.9, 0.4], [0.5, 0.6, 0.7]]),
            torch.tensor([[True, True, False], [True, True, True], [True, True, True]]),
            0.9,
            1.1,
        ),
        _padded_cases(7),
        (_logs([[0.5, 0.5]]), _logs([[0.25, 0.25]]), torch.tensor([[True, False]]), 0.4, 1.0),
    ),
    mistakes=(
        Mistake(
            _rule(_product),
            "That bounds the product. The geometric mean is its root: divide Σ d by the number of tokens.",
        ),
        Mistake(
            _rule(_inverse),
            "Upside down: the bounds are on trainer over engine. (verl's k1 is −log r, so it does just this.)",
        ),
        Mistake(
            _rule(_arithmetic_mean),
            "That is the mean of the ratios. A half and a two average to 1.25, but their product is 1.",
        ),
        Mistake(
            _rule(_each),
            "That looks at each token alone. A rule on the answer keeps or drops all of its tokens.",
        ),
        Mistake(_whole_width, "The mean runs over the padded width. Divide by the number of real tokens of each row."),
        Mistake(
            lambda old, rollout, mask, lower, upper: _vectorised(old, rollout, mask, lower, upper).any(-1),
            "One truth per answer came back. A mask has one per token: repeat it, and leave padding False.",
        ),
    ),
    equivalents=(_vectorised,),
)


def _trained_distribution(q: Tensor, keep: Tensor) -> Tensor:
    kept = [x if stays else 0.0 for x, stays in zip(q.tolist(), keep.tolist(), strict=True)]
    total = sum(kept)
    return torch.tensor([x / total if total else 0.0 for x in kept], dtype=torch.float64)


def _q(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


TRAINED_DISTRIBUTION = Exercise(
    expected=_trained_distribution,
    cases=(
        (_q(0.5, 0.25, 0.25), torch.tensor([True, True, False])),
        (_q(0.7, 0.1, 0.1, 0.1), torch.tensor([False, True, True, False])),
        (_q(0.6, 0.4), torch.tensor([True, True])),
        (_q(0.6, 0.4), torch.tensor([False, False])),
    ),
    mistakes=(
        Mistake(lambda q, keep: q * keep, "It does not add up to 1. Divide by what was kept, Z."),
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
            "You divided by the number of actions that are kept. Divide by their probability, Z.",
        ),
        Mistake(
            lambda q, keep: q * keep / (q * keep).sum(),
            "Right as long as something is kept. Where nothing is, Z = 0: return zeros, not nan.",
        ),
    ),
    equivalents=(lambda q, keep: q.where(keep, 0) / max(float(q[keep].sum()), 1e-300),),
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
            "Where nothing is kept, a denominator of 0 makes nan, and the optimizer spreads it over every weight. "
            "Return 0.",
        ),
        Mistake(
            lambda loss, mask, keep, denominator: (
                loss[mask].sum() / (mask if denominator == "fixed" else keep).sum().clamp(min=1)
            ),
            "Rejected tokens are still in the sum. The mask of real tokens is not the mask of kept ones.",
        ),
    ),
    equivalents=(
        lambda loss, mask, keep, denominator: float(
            loss.where(keep, 0).sum() / {"fixed": mask, "kept": keep}[denominator].sum().clamp(min=1)
        ),
    ),
)


# --- mini.py: the loss ---

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def slope(of_loss: Loss) -> Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]:
    """The slope of a loss along every log-prob of the trainer; its weights min(p/q, cap) are made of the same."""

    def along_log_probs(trainer: Tensor, engine: Tensor, mask: Tensor, advantage: Tensor, cap: float) -> Tensor:
        trainer = trainer.clone().requires_grad_()
        weights = (trainer - engine).where(mask, -math.inf).exp().clamp(max=cap)
        return torch.autograd.grad(of_loss(trainer, weights, mask, advantage), trainer)[0]

    return along_log_probs


def _coefficients(trainer: Tensor, engine: Tensor, mask: Tensor, advantage: Tensor, cap: float) -> Tensor:
    slopes = torch.zeros(mask.shape, dtype=torch.float64)
    for row, column in mask.nonzero().tolist():
        weight = min(math.exp(float(trainer[row, column] - engine[row, column])), cap)
        slopes[row, column] = -weight * float(advantage[row]) / int(mask.sum())
    return slopes


LOSS = Exercise(
    expected=_coefficients,
    cases=(
        (
            _logs([[0.8, 0.4], [0.4, 0.9]]),
            _logs([[0.4, 0.8], [0.4, 0.3]]),
            torch.tensor([[True, True], [True, False]]),
            _q(1.0, -2.0),
            1.5,
        ),
        (*_padded_cases(8)[:3], torch.arange(6, dtype=torch.float64) - 2.5, 1.2),
    ),
    mistakes=(
        Mistake(
            slope(lambda log_p, w, mask, a: -(w * a[:, None] * log_p.where(mask, 0)).sum() / mask.sum()),
            "The weights have a slope of their own, and it came along: detach them.",
        ),
        Mistake(
            slope(lambda log_p, w, mask, a: (w.detach() * a[:, None] * log_p.where(mask, 0)).sum() / mask.sum()),
            "The sign is turned. An optimiser goes down, and reward is to go up.",
        ),
        Mistake(
            slope(lambda log_p, w, mask, a: -(w.detach() * a[:, None] * log_p.where(mask, 0)).mean()),
            "You divided by all places, padding included. Divide by the number of real tokens.",
        ),
        Mistake(
            slope(lambda log_p, w, mask, a: -(w.detach() * a[:, None] * log_p.where(mask, 0)).sum()),
            "This is a sum. Divide by the number of real tokens.",
        ),
        Mistake(
            slope(lambda log_p, w, mask, a: -(a[:, None] * log_p.where(mask, 0)).sum() / mask.sum()),
            "The weights are missing: this trains on the engine's tokens as if they were the trainer's.",
        ),
        Mistake(
            slope(
                lambda log_p, w, mask, a: -(w.detach() * a[:, None]).sum() / mask.sum() - 0 * log_p.where(mask, 0).sum()
            ),
            "It has no slope: log p must stand in it, times weight and advantage.",
        ),
    ),
    equivalents=(
        slope(lambda log_p, w, mask, a: -(w.detach() * a[:, None] * log_p)[mask].mean()),
        slope(
            lambda log_p, w, mask, a: (
                -(w.detach().where(mask, 0) * a[:, None]).mul(log_p).where(mask, 0).sum() / mask.sum()
            )
        ),
    ),
)
