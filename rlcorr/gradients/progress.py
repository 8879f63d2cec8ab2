"""Progress η: one number for a correction, the share of the progress of the exact gradient that it keeps.

A step θ + a g along an estimator g of the gradient g* raises the objective by at least a ⟨g*, g⟩ − a² L ‖g‖²/2, if L
bounds its curvature. On average over batches and with the best a, this is ⟨g*, E g⟩² / (2 L E‖g‖²). With g* itself it
is ‖g*‖²/(2 L). With E‖g‖² = ‖E g‖² + V/B, where V is the variance of one answer's contribution and B the number of
answers in a batch, the quotient is

    η(B) = ⟨E g, g*⟩² / (‖g*‖² (‖E g‖² + V/B)).

η is between 0 and 1 and does not change with the length of g. It describes one step of the best length. It leaves out
Adam, gradient clipping, and the effect of many steps together.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.gradients.bootstrap import Interval, interval_of

ROUNDING = 1e-8
"""Squared lengths below this share of ‖g*‖² are rounding errors of float32 scores. The value includes a margin."""


def progress(inner: Tensor, g2: Tensor, reference2: Tensor, noise2: Tensor) -> Tensor:
    """Compute η from ⟨E g, g*⟩, ‖E g‖², ‖g*‖² and V/B, each without noise; NaN unless ‖g*‖² > 0.

    η is 0 for an estimator that points away from g*, because its best step has length 0. It is also 0 for a correction
    that rejects everything and leaves only rounding. ‖E g‖ is at least its part along g*. Subtracting noise can leave
    less, and without this limit a correction with unknown length would make the most progress.
    """
    along2 = inner.clamp(min=0).square() / reference2
    length2 = torch.maximum(torch.maximum(g2, along2) + noise2, ROUNDING * reference2)
    return torch.where(reference2 > 0, along2 / length2, math.nan)


@dataclass(frozen=True)
class Choice:
    """The correction that makes the most progress at one batch size, and how certain this is."""

    batch_size: int
    best: int
    support: list[float]
    """For each correction, the share of the bootstrap samples in which it makes the most progress."""
    groups: list[list[int]]
    """All corrections, the best first. Those of one group do not differ significantly from its first."""
    over_next: Interval
    """η of the best minus η of the second; NaN if there is only one correction."""
    over_nothing: Interval
    """η of the best minus η of no correction."""


def choices(eta: Tensor, nothing: Tensor, batch_sizes: tuple[int, ...]) -> tuple[Choice, ...]:
    """Choose the best correction for each of S batch sizes.

    Args:
        eta: η of C corrections, (C, S, 1 + R).
        nothing: η of no correction, (S, 1 + R).
    """
    return tuple(_choice(eta[:, index], nothing[index], size) for index, size in enumerate(batch_sizes))


def _choice(eta: Tensor, nothing: Tensor, batch_size: int) -> Choice:
    comparable = eta.nan_to_num(-1.0)  # NaN ranks last
    order = comparable[:, 0].argsort(descending=True, stable=True).tolist()
    winners = comparable[:, 1:].argmax(0)
    second = eta[order[1]] if len(order) > 1 else torch.full_like(nothing, math.nan)
    return Choice(
        batch_size=batch_size,
        best=order[0],
        support=[float((winners == index).float().mean()) for index in range(len(eta))],
        groups=tied(eta, order),
        over_next=difference(eta[order[0]], second),
        over_nothing=difference(eta[order[0]], nothing),
    )


def tied(eta: Tensor, order: list[int]) -> list[list[int]]:
    """Split corrections, in this order, into groups: (C, 1 + R).

    A correction that differs significantly from the first of the current group begins a new group.
    """
    groups: list[list[int]] = []
    for index in order:
        if groups and not difference(eta[groups[-1][0]], eta[index]).tells:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def difference(a: Tensor, b: Tensor) -> Interval:
    """Return a − b on the same bootstrap samples, (1 + R,) each. Noise that both share cancels."""
    return interval_of(a - b, signed=True)


def units_needed(units: int, paired: Interval) -> int | None:
    """Return how many prompts or sampled answers would make a difference like this one significant.

    Intervals shrink with the root of their number. Return None if the difference is 0 or unknown.
    """
    half_width = paired.value - paired.low if paired.value > 0 else paired.high - paired.value
    if not abs(paired.value) > 0 or math.isnan(half_width):
        return None
    return math.ceil(units * max(half_width / abs(paired.value), 1) ** 2)
