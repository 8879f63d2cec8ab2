"""One number for a correction: the share of the exact gradient's progress that is left.

A step θ + a g along an estimator g of the gradient g* changes the objective by at least a ⟨g*, g⟩ − a² L ‖g‖²/2, if L
bounds its curvature. On average over batches, and with the best a, that is ⟨g*, E g⟩² / (2 L E‖g‖²); with g* itself it
is ‖g*‖²/(2 L). With E‖g‖² = ‖E g‖² + V/B, V the variance of one answer's contribution and B the answers in a batch, the
share is

    η(B) = ⟨E g, g*⟩² / (‖g*‖² (‖E g‖² + V/B)).

It lies between 0 and 1 and does not change with the length of g. It is about one step of the best length, and leaves
out Adam, the clipping of gradients, and what many steps add up to.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.gradients.bootstrap import Interval, interval_of

ROUNDING = 1e-8
"""Squared lengths below this share of ‖g*‖² are rounding: of float32 scores, with room."""


def progress(inner: Tensor, g2: Tensor, reference2: Tensor, noise2: Tensor) -> Tensor:
    """η from ⟨E g, g*⟩, ‖E g‖², ‖g*‖² and V/B, each without what noise adds to it; NaN where ‖g*‖² is not above 0.

    An estimator that points away from g* makes none: the best length of its step is 0. Nor does one that rejects
    everything, of which only rounding is left. ‖E g‖ is at least its part along g*: taking noise off may leave less,
    and a correction that nothing is known of would make the most progress.

    >>> one = torch.tensor(1.0)
    >>> progress(one, one, one, torch.tensor([0.0, 1.0, 3.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    along2 = inner.clamp(min=0).square() / reference2
    length2 = torch.maximum(torch.maximum(g2, along2) + noise2, ROUNDING * reference2)
    return torch.where(reference2 > 0, along2 / length2, math.nan)


@dataclass(frozen=True)
class Choice:
    """The correction that makes the most progress at one batch size, and how sure that is."""

    batch_size: int
    best: int
    support: list[float]
    """Per correction, the share of the bootstrap samples in which it makes the most."""
    groups: list[list[int]]
    """All corrections, the best first; those of a group cannot be told from its first."""
    over_next: Interval
    """By how much its η is above that of the second; NaN where there is none."""
    over_nothing: Interval
    """By how much it is above that of no correction."""


def choices(of_all: Tensor, nothing: Tensor, batch_sizes: tuple[int, ...]) -> tuple[Choice, ...]:
    """From η of C corrections, (C, S, 1 + R), and of none, (S, 1 + R): one for each of S batch sizes."""
    return tuple(_choice(of_all[:, place], nothing[place], size) for place, size in enumerate(batch_sizes))


def _choice(of_size: Tensor, nothing: Tensor, batch_size: int) -> Choice:
    shares = of_size.nan_to_num(-1.0)
    order = shares[:, 0].argsort(descending=True, stable=True).tolist()
    winners = shares[:, 1:].argmax(0)
    second = of_size[order[1]] if len(order) > 1 else torch.full_like(nothing, math.nan)
    return Choice(
        batch_size=batch_size,
        best=order[0],
        support=[float((winners == number).float().mean()) for number in range(len(of_size))],
        groups=tied(of_size, order),
        over_next=difference(of_size[order[0]], second),
        over_nothing=difference(of_size[order[0]], nothing),
    )


def tied(of_size: Tensor, order: list[int]) -> list[list[int]]:
    """In this order, (C, 1 + R): a new group begins with the first correction that can be told from the one that the
    group began with."""
    groups: list[list[int]] = []
    for number in order:
        if groups and not difference(of_size[groups[-1][0]], of_size[number]).tells:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def difference(a: Tensor, b: Tensor) -> Interval:
    """a − b on the same bootstrap samples, (1 + R,) each: what both share cancels."""
    return interval_of(a - b, signed=True)


def units_needed(units: int, paired: Interval) -> int | None:
    """How many prompts, or sampled answers, would tell a difference like this one from 0: intervals shrink with the
    root of their number. None where the difference is 0 or unknown."""
    towards_0 = paired.value - paired.low if paired.value > 0 else paired.high - paired.value
    if not abs(paired.value) > 0 or math.isnan(towards_0):
        return None
    return math.ceil(units * max(towards_0 / abs(paired.value), 1) ** 2)
