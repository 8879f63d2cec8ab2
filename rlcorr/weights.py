"""Importance weights: their levels, one record each in `LEVELS`, and their bounds. A new level is one record."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlcorr.errors import member, positive, unknown
from rlcorr.ratios import over_sequence, ratio

WeightMode = Literal["truncate", "mask"]
SUMMABLE = 1e30
"""A log-prob of −∞ counts as ± this in the sum of a sequence: larger than any real one, and sums of it are finite."""


@dataclass(frozen=True)
class Level:
    """How the ratios of an answer become weights."""

    meaning: str
    """Formula, for people who choose a level."""
    subject: str
    """The words for it in a sentence: "its own ratio {ratio}" in "each token is weighted by …"."""
    title: str
    """The same in the title of a preset: "each token's weight"."""
    of_log_ratio: Callable[[Tensor, Tensor], Tensor]
    """d, finite, and the mask → log w, (B, T), or (B, 1) if all tokens of a row have one weight."""
    per_token: bool = False
    """True if each token of a row has its own weight."""


LEVELS: dict[str, Level] = {
    "token": Level("r_t", "its own ratio {ratio}", "each token's weight", lambda d, _: d, per_token=True),
    "sequence": Level(
        "Π_t r_t",
        "the product of its sequence's ratios {ratio}",
        "each answer's weight",
        lambda d, mask: over_sequence(d, mask, "sum")[:, None],
    ),
    "geometric": Level(
        "(Π_t r_t)^(1/n)",
        "the geometric mean of its sequence's ratios {ratio}",
        "each answer's mean weight",
        lambda d, mask: over_sequence(d, mask, "mean")[:, None],
    ),
    "prefix": Level(
        "Π_{j≤t} r_j (CTPO, arXiv:2605.07331)",
        "the product of the ratios {ratio} of this token and those before it",
        "the weight of each token's prefix",
        lambda d, mask: torch.where(mask, d, 0).cumsum(-1),
        per_token=True,
    ),
}
"""Name of a level → its record."""


@dataclass(frozen=True)
class Weights:
    """The importance weights of a correction.

    Bounds are numbers, or one per row as a tensor (B, 1). A bound itself is inside, and logarithms are compared.
    """

    level: str
    upper: float | Tensor = 2.0
    lower: float | Tensor | None = None
    mode: WeightMode = "truncate"
    normalise: bool = False

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise unknown("rollout_is", str(self.level), LEVELS)
        member("rollout_is_mode", self.mode, WeightMode)
        if not isinstance(self.lower, Tensor) and not isinstance(self.upper, Tensor):
            positive("rollout_is_threshold", self.lower, self.upper)

    @property
    def per_token(self) -> bool:
        """Check whether each token of a row has its own weight."""
        return LEVELS[self.level].per_token

    def raw(self, d: Tensor, mask: Tensor) -> Tensor:
        """Return the logarithms of the weights before any bound: (B, T), or (B, 1) for one weight per row.

        >>> d, mask = torch.tensor([[0.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])
        >>> Weights("sequence").raw(d, mask).tolist(), Weights("geometric").raw(d, mask).tolist()
        ([[2.0]], [[1.0]])
        >>> Weights("prefix").raw(torch.tensor([[1.0, 9.0, 2.0]]), torch.tensor([[True, False, True]])).tolist()
        [[1.0, 1.0, 3.0]]
        """
        finite = d if self.level == "token" else d.clamp(-SUMMABLE, SUMMABLE)  # otherwise ∞ − ∞ would be NaN
        return LEVELS[self.level].of_log_ratio(finite, mask)

    def outside(self, log_w: Tensor) -> tuple[Tensor, Tensor]:
        """Return which weights are below, and which above the bounds. NaN is neither."""
        below = torch.zeros_like(log_w, dtype=torch.bool) if self.lower is None else log_w < log_bound(self.lower)
        return below, log_w > log_bound(self.upper)

    def bounded(self, log_w: Tensor) -> Tensor:
        """Return exp(log w), truncated to the bounds (TIS) or 0 outside them (IcePop).

        >>> Weights("token", upper=2.0).bounded(torch.tensor([0.0, 1.0])).tolist()
        [1.0, 2.0]
        >>> Weights("token", upper=torch.tensor([[2.0], [9.0]])).bounded(torch.tensor([[1.0], [0.0]])).tolist()
        [[2.0], [1.0]]
        """
        if self.mode == "truncate":
            weights = ratio(log_w)
            weights = weights if self.lower is None else weights.clamp(min=_fitting(self.lower, weights))
            return weights.clamp(max=_fitting(self.upper, weights))
        return torch.where(between(log_w, self.lower, self.upper), ratio(log_w), 0)


def _fitting(bound: float | Tensor, weights: Tensor) -> float | Tensor:
    """Return a bound that the dtype of the weights holds: above it, torch's clamp takes infinity only."""
    return bound if isinstance(bound, Tensor) else min(bound, torch.finfo(weights.dtype).max)


def between(log_r: Tensor, lower: float | Tensor | None, upper: float | Tensor) -> Tensor:
    """Check whether lower ≤ r ≤ upper, comparing logarithms. NaN is outside."""
    floor = -math.inf if lower is None else log_bound(lower)
    return (log_r >= floor) & (log_r <= log_bound(upper))


def log_bound(bound: float | Tensor) -> float | Tensor:
    """Return the logarithm of a bound, a number or one per row."""
    return bound.log() if isinstance(bound, Tensor) else math.log(bound)
