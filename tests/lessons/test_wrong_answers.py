"""Wrong answers to the exercises of the five lessons, as learners write them: each is refused by its right name."""

import importlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcorr.teaching.check import problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

Rows = list[tuple[Callable[..., Any], str]]
"""A wrong answer, and words of the sentence that it must get."""


def d_of(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, p - q, 0.0)


ANSWER_RATIO: Rows = [
    (lambda p, q, mask: (p - q).sum(-1).exp(), "Your product includes padding"),
    (lambda p, q, mask: ((p - q) * mask).sum(-1).exp(), "Multiplying by it is not enough"),
    (lambda p, q, mask: d_of(p, q, mask).exp().where(mask, 0).prod(-1), "a product with a 0 is 0"),
    (lambda p, q, mask: d_of(p, q, mask).sum(-1), "Yours is the logarithm of what is expected"),
    (lambda p, q, mask: d_of(q, p, mask).sum(-1).exp(), "upside down"),
    (lambda p, q, mask: d_of(p, q, mask).mean(-1).exp(), "This is the geometric mean"),
    (lambda p, q, mask: (d_of(p, q, mask).sum(-1) / mask.sum(-1)).exp(), "This is the geometric mean"),
    (lambda p, q, mask: d_of(p, q, mask).exp().sum(-1), "You added the ratios"),
    (lambda p, q, mask: (d_of(p, q, mask).exp() * mask).sum(-1) / mask.sum(-1), "You added the ratios"),
    (lambda p, q, mask: (10 ** d_of(p, q, mask)).prod(-1), "natural logarithms"),
    (lambda p, q, mask: torch.where(mask, p / q, 1.0).prod(-1), "You divided log-probs"),
    (lambda p, q, mask: p.exp().where(mask, 1).prod(-1), "the trainer's probability of the answer"),
    (lambda p, q, mask: d_of(p, q, ~mask).sum(-1).exp(), "select real tokens with the mask"),
    (lambda p, q, mask: d_of(p, q, mask).sum().exp(), "the shape must be (2,); yours is ()"),
    (lambda p, q, mask: d_of(p, q, mask).sum(0).exp(), "the shape must be (2,); yours is (4,)"),
    (lambda p, q, mask: d_of(p, q, mask).sum(-1).exp().clamp(max=2), "In call 2 of 2"),
]
TRAINER_REWARD: Rows = [
    (lambda reward, r: reward.mean(), "This is the average that the engine earned"),
    (lambda reward, r: (reward / r).mean(), "You divided by the ratio"),
    (lambda reward, r: reward @ r, "This is a sum"),
    (lambda reward, r: (reward * r).sum() / r.sum(), "You divided by the sum of the ratios"),
    (lambda reward, r: reward.sum() / r.sum(), "You divided the rewards by the ratios"),
    (lambda reward, r: reward * r, "one number per answer"),
    (lambda reward, r: reward.mean() * r.mean(), "You averaged first"),
    (lambda reward, r: (reward * r.log()).mean(), "the logarithm of the ratio"),
    (lambda reward, r: (reward * r.exp()).mean(), "leave out the exponential"),
    (lambda reward, r: r.mean(), "This is the average ratio"),
    (lambda reward, r: (reward * r).sum() / (len(r) - 1), "not by N − 1"),
    (lambda reward, r: (reward * r)[reward != 0].mean(), "whose reward is 0"),
    (lambda reward, r: (reward * r.clamp(max=1.0)).mean(), "You capped the ratios"),
    (lambda reward, r: -(reward * r).mean(), "The sign is wrong"),
    (lambda reward, r: 2.25, "the same in every call"),
    (lambda reward, r: (reward / (r - r)).mean(), "the same in every call"),  # nan
]
EFFECTIVE_SHARE: Rows = [
    (lambda w: 1 / (w / w.sum()).square().sum(), "the effective number of samples. Divide by N"),
    (lambda w: len(w) * (w**2).sum() / w.sum() ** 2, "it grows when the weights spread"),
    (lambda w: (w / w.sum()).square().sum(), "1 divided by the effective number"),
    (lambda w: 1 / (w**2).mean(), "only if the weights of the sample average to 1"),
    (lambda w: 1 / (1 + w.var()), "torch's `var` divides by N − 1. Use the formula"),
    (lambda w: 1 / (1 + w.var(correction=0)), "Divide the variance by the square"),
    (lambda w: 1 / (1 + w.var() / w.mean() ** 2), "With `correction=0`"),
    (lambda w: 1 - w.var(correction=0) / w.mean() ** 2, "only if χ² is small"),
    (lambda w: w.std() ** 2 / w.mean() ** 2, "the χ² of the sample"),
    (lambda w: w.sum() / (len(w) * (w**2).sum()), "Square the sum in the numerator"),
    (lambda w: w.mean() ** 2 / (w**2).sum(), "You divided by N twice"),
    (lambda w: w.sum() ** 2 / (w**2).mean(), "You multiplied by N"),
    (lambda w: w.sum() ** 2 / len(w) * (w**2).sum(), "Put brackets"),
    (lambda w: (w**2).sum() / (len(w) * (w**2).sum()), "the square of the sum"),
    (lambda w: w.sum() / w.max(), "You used the largest weight"),
    (lambda w: w.mean() / w.square().mean().sqrt(), "Yours is the square root of what is expected"),
    (lambda w: w.mean(), "This is the average weight"),
    (lambda w: w.sum() ** 2 / (len(w) * w**2), "the shape must be (); yours is (4,)"),
    (lambda w: 1.0, "the same in every call"),
]
LONGEST_ANSWER: Rows = [
    (lambda chi2, share: math.floor((1 / share - 1) / chi2), "You added χ²"),
    (lambda chi2, share: math.floor((1 - share) / chi2), "You took χ² off"),
    (lambda chi2, share: int(-math.log(share) / chi2), "Close: e to the χ²"),
    (lambda chi2, share: math.floor(math.log(1 / share) / math.log1p(chi2)) + 1, "one token too many"),
    (lambda chi2, share: math.floor(math.log(1 / share) / math.log1p(chi2)) - 1, "one token too few"),
    (lambda chi2, share: next(t for t in range(10**4) if (1 + chi2) ** -(t + 1) <= share), "means ≥"),
    (lambda chi2, share: math.log(1 / share) / math.log1p(chi2), "A number of tokens is whole"),
    (lambda chi2, share: round(-math.log(share) / math.log1p(chi2)), "the nearest whole number"),
    (lambda chi2, share: math.floor(math.log(share) / math.log1p(chi2)), "The logarithm of a share is negative"),
    (lambda chi2, share: math.floor(math.log1p(chi2) / -math.log(share)), "upside down"),
    (lambda chi2, share: int(math.log10(1 / share) / math.log1p(chi2)), "the same base"),
    (lambda chi2, share: int(math.log(1 / (1 - share)) / math.log1p(chi2)), "1 − share is what is lost"),
    (lambda chi2, share: int(-math.log(share) / math.log(chi2)), "by 1 + χ², not by χ²"),
    (lambda chi2, share: 7, "the same in every call"),
]
RATIOS: Rows = [
    (lambda p, q, mask: torch.exp(p - q), "Your result is not 0 at padding"),
    (lambda p, q, mask: torch.exp(p - q) * mask, "nan times 0 is nan. Select"),
    (lambda p, q, mask: (p.exp() / q.exp()).nan_to_num(0), "You replaced nan"),
    (lambda p, q, mask: d_of(p, q, mask).exp(), "Padding gets the ratio 1"),
    (lambda p, q, mask: torch.where(mask, q - p, -math.inf).exp(), "upside down"),
    (lambda p, q, mask: torch.where(mask, p / q, 0.0), "You divided log-probs"),
    (lambda p, q, mask: d_of(p, q, mask), "This is d"),
    (lambda p, q, mask: torch.where(mask, p.exp(), 0.0), "This is the trainer's probability"),
    (lambda p, q, mask: torch.where(mask, p.exp() - q.exp(), 0.0), "the difference of the probabilities"),
    (lambda p, q, mask: torch.where(mask, 10 ** (p - q), 0.0), "natural logarithms"),
    (lambda p, q, mask: torch.where(mask, 0.0, (p - q).exp()), "the wrong way round"),
    (lambda p, q, mask: torch.where(mask, (p - q).exp().clamp(max=2.0), 0.0), "You capped the ratios"),
    (lambda p, q, mask: (p - q).exp()[mask], "the shape must be (2, 3); yours is (4,)"),
    (lambda p, q, mask: d_of(p, q, mask).sum(-1).exp(), "the shape must be (2, 3); yours is (2,)"),
]


def k2(logp: Tensor, ref: Tensor) -> Tensor:
    return (logp - ref) ** 2 / 2


def k3(logp: Tensor, ref: Tensor) -> Tensor:
    return torch.exp(ref - logp) - 1 + logp - ref


STRAIGHT_THROUGH: Rows = [
    (k3, "That is plain k3"),
    (k2, "That is plain k2"),
    (lambda logp, ref: logp - ref, "That is plain k1"),
    (lambda logp, ref: k3(logp, ref).detach(), "everything is detached"),
    (lambda logp, ref: k2(logp, ref) + k3(logp, ref), "in the value and in the gradient"),
    (lambda logp, ref: k2(logp, ref) + k3(logp, ref).detach(), "the value is k2 + k3"),
    (lambda logp, ref: k2(logp, ref) - k2(logp, ref).detach(), "the value is 0"),
    (lambda logp, ref: k3(logp, ref) + k2(logp, ref) - k2(logp, ref).detach(), "both gradients are added"),
    (lambda logp, ref: k3(logp, ref) - (k3(logp, ref) - k2(logp, ref)).detach(), "The other way round"),
    (lambda logp, ref: k3(logp, ref).detach() - k2(logp, ref) + k2(logp, ref).detach(), "has the wrong sign"),
    (lambda logp, ref: logp - (logp - k3(logp, ref)).detach(), "the gradient is that of k1"),
    (lambda logp, ref: (logp - ref) ** 2 - ((logp - ref) ** 2 - k3(logp, ref)).detach(), "twice that of k2"),
    (lambda logp, ref: k2(logp, ref) * (k3(logp, ref) / k2(logp, ref)).detach(), "a factor multiplies the gradient"),
    (lambda logp, ref: k2(logp, ref) + (k3(ref, logp) - k2(logp, ref)).detach(), "Your δ has the wrong sign"),
    (lambda logp, ref: (k2(logp, ref) + (k3(logp, ref) - k2(logp, ref)).detach()).mean(), "the shape must be (3,)"),
]


def one_hot(z: Tensor, a: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(a, z.shape[-1])


SOFTMAX_SCORE: Rows = [
    (lambda z, a: z.softmax(-1) - one_hot(z, a), "The sign is wrong: the score"),
    (lambda z, a: one_hot(z, a), "The probabilities are missing"),
    (lambda z, a: -z.softmax(-1), "The 1 at the sampled action is missing"),
    (lambda z, a: 1 - z.softmax(-1), "belongs to the sampled action only"),
    (lambda z, a: one_hot(z, a) * (1 - z.softmax(-1)), "Only the sampled action has a number"),
    (lambda z, a: one_hot(z, a) - z, "You subtracted the logits"),
    (lambda z, a: one_hot(z, a) - z.log_softmax(-1), "the logarithms of the probabilities"),
    (lambda z, a: one_hot(z, a) - z.softmax(0), "over the samples"),
    (lambda z, a: one_hot(z, a) - z.exp(), "divide by the sum of the row"),
    (lambda z, a: one_hot(z, a) - z.sigmoid(), "You used the sigmoid"),
    (lambda z, a: z.softmax(-1), "These are the probabilities"),
    (lambda z, a: z.softmax(-1).gather(-1, a[:, None]) * (one_hot(z, a) - z.softmax(-1)), "no factor π"),
    (lambda z, a: (one_hot(z, a) - z.softmax(-1)) / len(z), "You divided by the number of samples"),
    (lambda z, a: (one_hot(z, a) - z.softmax(-1)).mean(0), "the shape must be (2, 3); yours is (3,)"),
    (lambda z, a: (one_hot(z, a) - z.softmax(-1)).T, "the shape must be (2, 3); yours is (3, 2)"),
]


def masked(weights: Tensor, low: float | None, high: float) -> Tensor:
    return torch.where((weights >= (low or 0)) & (weights <= high), weights, 0.0)


WEIGHTS: Rows = [
    (lambda p, q, mask, low, high: (p - q).exp().clamp(low, high), "Padding got a weight"),
    (lambda p, q, mask, low, high: (p - q).exp().clamp(low, high) * mask, "You multiplied by the mask"),
    (lambda p, q, mask, low, high: (p - q).exp().where(mask, 0).clamp(low, high), "Apply the mask last"),
    (lambda p, q, mask, low, high: d_of(p, q, mask).exp().clamp(low, high), "Padding gets the weight 1"),
    (lambda p, q, mask, low, high: (q - p).exp().clamp(low, high).where(mask, 0), "Your ratio is engine over trainer"),
    (lambda p, q, mask, low, high: (p / q).clamp(low, high).where(mask, 0), "You divided log-probs"),
    (lambda p, q, mask, low, high: (p - q).clamp(low, high).exp().where(mask, 0), "you compared d = log r"),
    (lambda p, q, mask, low, high: (p - q).clamp(low, high).where(mask, 0), "you compared d = log r"),
    (lambda p, q, mask, low, high: masked((p - q).exp(), low, high).where(mask, 0), "That is masking"),
    (lambda p, q, mask, low, high: masked((p - q).exp(), None, high).where(mask, 0), "That is masking"),
    (lambda p, q, mask, low, high: (p - q).exp().clamp(max=high).where(mask, 0), "The lower bound is missing"),
    (lambda p, q, mask, low, high: (p - q).exp().clamp(min=low or 0).where(mask, 0), "The upper bound is missing"),
    (lambda p, q, mask, low, high: (p - q).exp().where(mask, 0), "Apply the bounds"),
    (lambda p, q, mask, low, high: (p - q).exp().clamp(low or 1 / high, high).where(mask, 0), "If `lower` is None"),
    (lambda p, q, mask, low, high: (p - q).exp().clamp(low, high).where(~mask, 0), "the wrong way round"),
    (lambda p, q, mask, low, high: (p - q).exp().clamp(low, high)[mask], "the shape must be (2, 4); yours is (6,)"),
    (lambda p, q, mask, low, high: d_of(p, q, mask).sum(-1).exp().clamp(low, high), "the shape must be (2, 4)"),
]


def moments(p: Tensor, q: Tensor, f: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Return the bias, and the variance of one draw."""
    wf = (p / q).clamp(max=cap) * f
    mean = (q * wf).sum()
    return mean - (p * f).sum(), (q * wf**2).sum() - mean**2


def with_moments(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Make an answer from a function of bias, variance and N."""
    return lambda p, q, f, cap, draws: answer(*moments(p, q, f, cap), draws)


SQUARED_ERROR: Rows = [
    (with_moments(lambda bias, variance, n: bias**2), "This is the square of the bias"),
    (with_moments(lambda bias, variance, n: variance / n), "The square of the bias is missing"),
    (with_moments(lambda bias, variance, n: bias**2 + variance), "an N-th of the variance"),
    (with_moments(lambda bias, variance, n: (bias**2 + variance) / n), "Only the variance shrinks"),
    (with_moments(lambda bias, variance, n: bias + variance / n), "The bias must be squared"),
    (with_moments(lambda bias, variance, n: bias.abs() + variance / n), "It must be squared"),
    (with_moments(lambda bias, variance, n: (bias**2 + variance / n) ** 0.5), "That is the root of it"),
    (with_moments(lambda bias, variance, n: bias**2 + variance / n**0.5), "not by N − 1, N² or √N"),
    (with_moments(lambda bias, variance, n: bias**2 + variance / (n - 1)), "not by N − 1, N² or √N"),
    (with_moments(lambda bias, variance, n: bias**2 + variance**0.5 / n), "You added the standard deviation"),
    (with_moments(lambda bias, variance, n: bias**2 + (variance / n) ** 2), "You squared the variance"),
    (with_moments(lambda bias, variance, n: bias**2 - variance / n), "You subtracted the noise"),
    (lambda p, q, f, cap, n: moments(q, p, f, cap)[0] ** 2 + moments(q, p, f, cap)[1] / n, "p and q are exchanged"),
    (lambda p, q, f, cap, n: moments(p, q, f, math.inf)[1] / n, "The cap is missing"),
    (lambda p, q, f, cap, n: moments(p, q, f, cap)[0] ** 2 + moments(p, q, f, math.inf)[1] / n, "without a cap"),
    (lambda p, q, f, cap, n: moments(p, q, f, cap)[0] ** 2 + (q * ((p / q).clamp(max=cap) * f) ** 2).sum() / n,
     "the average of the squares"),
    (lambda p, q, f, cap, n: moments(p, q, f, cap)[0] ** 2 + ((p / q).clamp(max=cap) * f).var() / n,
     "`var` counts every action once"),
    (lambda p, q, f, cap, n: ((q * ((p / q).clamp(max=cap) - 1) * f).sum()) ** 2 + moments(p, q, f, cap)[1] / n,
     "You compared with the engine's"),
]  # fmt: skip


def away(r: Tensor) -> Tensor:
    return torch.maximum(r, 1 / r).sort().values


TIGHTEST: Rows = [
    (lambda r, share: r.sort().values[math.ceil(share * len(r)) - 1], "Small ratios are outside"),
    (lambda r, share: r.quantile(share), "Small ratios are outside"),
    (lambda r, share: away(r).quantile(share), "An interpolated quantile"),
    (lambda r, share: away(r)[int(share * len(r)) - 1], "Yours keeps too few"),
    (lambda r, share: away(r)[round(share * len(r)) - 1], "Yours keeps too few"),
    (lambda r, share: away(r)[math.ceil(share * len(r))], "One token too many"),
    (lambda r, share: away(r)[int(share * len(r))], "`int` rounds down"),
    (lambda r, share: 1 + (r - 1).abs().sort().values[math.ceil(share * len(r)) - 1], "You measured |r − 1|"),
    (lambda r, share: (r - 1).abs().sort().values[math.ceil(share * len(r)) - 1], "You measured |r − 1|"),
    (lambda r, share: r.log().abs().sort().values[math.ceil(share * len(r)) - 1], "Yours is the logarithm"),
    (lambda r, share: 1 / away(r)[math.ceil(share * len(r)) - 1], "Inverted"),
    (lambda r, share: torch.minimum(r, 1 / r).sort().values[math.ceil(share * len(r)) - 1], "You took the smaller"),
    (lambda r, share: away(r)[math.ceil((1 - share) * len(r)) - 1], "You kept 1 − share"),
    (lambda r, share: torch.maximum(r, 1 / r)[math.ceil(share * len(r)) - 1], "must be sorted first"),
    (lambda r, share: away(r)[-1], "This band keeps every token"),
    (lambda r, share: away(r)[: math.ceil(share * len(r))].mean(), "the average distance"),
    (lambda r, share: away(r), "the shape must be (); yours is (10,)"),
    (lambda r, share: (1 / away(r)[-1], away(r)[-1]), "expected a number"),
]
TO_VERL: Rows = [
    (lambda low, high: (low, high), "invert both bounds"),
    (lambda low, high: (1 / low, 1 / high), "Both are inverted, but now the first is the larger"),
    (lambda low, high: (high, low), "You exchanged the bounds"),
    (lambda low, high: (math.log(low), math.log(high)), "verl takes the logarithms itself"),
    (lambda low, high: (-math.log(high), -math.log(low)), "verl takes the logarithms itself"),
    (lambda low, high: (-high, -low), "The minus sign belongs to the logarithm"),
    (lambda low, high: (1 / high, high), "the band of one number u"),
    (lambda low, high: (low, 1 / low), "the band of one number u"),
    (lambda low, high: (1 / high, low), "Invert the second, too"),
    (lambda low, high: (low, 1 / high), "Both bounds are inverted in verl"),
    (lambda low, high: f"{1 / high}_{1 / low}", "expected a tuple or list of 2 results"),
    (lambda low, high: 1 / high, "expected a tuple or list of 2 results"),
    (lambda low, high: (0.5, 2.0), "the same in every call"),
]

TABLE: dict[str, Rows] = {
    "start.ANSWER_RATIO": ANSWER_RATIO,
    "start.TRAINER_REWARD": TRAINER_REWARD,
    "importance_weights.EFFECTIVE_SHARE": EFFECTIVE_SHARE,
    "importance_weights.LONGEST_ANSWER": LONGEST_ANSWER,
    "importance_weights.RATIOS": RATIOS,
    "kl_estimators.STRAIGHT_THROUGH": STRAIGHT_THROUGH,
    "policy_gradient.SOFTMAX_SCORE": SOFTMAX_SCORE,
    "truncation.WEIGHTS": WEIGHTS,
    "truncation.SQUARED_ERROR": SQUARED_ERROR,
    "thresholds.TIGHTEST": TIGHTEST,
    "thresholds.TO_VERL": TO_VERL,
}
FIVE = "".join(path.read_text(encoding="utf-8") for path in sorted(LESSONS.glob("0[0-4]_*.py")))


def test_every_exercise_of_the_five_lessons_has_ten_wrong_answers() -> None:
    assert {name.partition(".")[2] for name in TABLE} == set(re.findall(r"^check\(\w+, (\w+)\)", FIVE, re.MULTILINE))
    assert min(map(len, TABLE.values())) >= 10


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_answer_is_refused_by_its_right_name(name: str) -> None:
    """A sentence begins with the mistake; one that begins with the call says what is wrong in the numbers."""
    module, _, exercise = name.partition(".")
    for answer, words in TABLE[name]:
        sentence = problem(answer, vars(importlib.import_module(f"exercises.{module}"))[exercise])
        assert sentence is not None, words
        assert words in (sentence if sentence.startswith("In call ") else sentence.partition("\n")[0])
