"""The size of the gap in a batch, and the share of its tokens and answers within narrow bands around a ratio of 1."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch

from rlcorr.correction import old_log_probs
from rlcorr.masked import masked_mean, masked_sum
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

BANDS = (0.001, 0.01, 0.05)
"""Half-widths ε of the bands 1 − ε to 1 + ε."""
TRIMMED = 0.01
"""Share of the tokens, those with the largest |d|, that the trimmed means leave out."""


@dataclass(frozen=True)
class GapSize:
    """Sums over the tokens and answers of a batch that have finite log-probs; d = log π_old − log π_rollout."""

    tokens: int
    answers: int
    k3_sum: float  # Σ e^d − 1 − d
    abs_sum: float  # Σ |d|
    tokens_within: tuple[int, ...]  # per band: tokens with |e^d − 1| ≤ ε
    answers_within: tuple[int, ...]  # per band: answers with |e^(mean of d) − 1| ≤ ε

    @property
    def k3(self) -> float:
        return self.k3_sum / self.tokens

    @property
    def abs(self) -> float:
        return self.abs_sum / self.tokens

    def shares_within(self) -> list[tuple[float, float, float]]:
        """Return (ε, share of the tokens, share of the answers) per band."""
        counts = zip(BANDS, self.tokens_within, self.answers_within, strict=True)
        return [(band, tokens / self.tokens, answers / self.answers) for band, tokens, answers in counts]


def gap_size(batch: TokenBatch) -> GapSize | None:
    """Measure the gap of a batch; None if no token has two finite log-probs.

    An answer counts with the geometric mean of its ratios. Raises `UsageError` without old_log_probs.
    """
    d = (old_log_probs(batch).detach() - batch.rollout_log_probs.detach()).double()
    mask = batch.response_mask & d.isfinite()
    answered = mask.any(dim=1)
    if not bool(answered.any()):
        return None
    d = torch.where(mask, d, 0)
    off, mean_off = d[mask].expm1().abs(), masked_mean(d, mask, dim=1)[answered].expm1().abs()
    return GapSize(
        int(mask.sum()),
        int(answered.sum()),
        float(masked_sum(k3(d), mask)),
        float(d.abs().sum()),
        tuple(int((off <= band).sum()) for band in BANDS),
        tuple(int((mean_off <= band).sum()) for band in BANDS),
    )


def total_size(sizes: Iterable[GapSize | None]) -> GapSize | None:
    """Add the sums of several batches; None if there are none."""
    some = [size for size in sizes if size is not None]
    if not some:
        return None
    tokens, answers, k3_sums, abs_sums, *within = zip(*(vars(size).values() for size in some), strict=True)
    per_band = (tuple(map(sum, zip(*counts, strict=True))) for counts in within)
    return GapSize(sum(tokens), sum(answers), sum(k3_sums), sum(abs_sums), *per_band)


@dataclass(frozen=True)
class Averages:
    """Averages of one number of the tokens, of which the later ones depend less on a few of them."""

    mean: float
    without: float  # mean without the named tokens
    trimmed: float  # mean without the tokens with the largest |d|
    median: float


def averages(batch: TokenBatch, named: Collection[tuple[int, int]] = ()) -> dict[str, Averages]:
    """Return the averages of |d|, k3, e^|d| and r over the tokens with finite log-probs, by the names of a symptom.

    One of the means leaves out the `named` tokens, (row, column); there must be others.
    """
    d = (old_log_probs(batch).detach() - batch.rollout_log_probs.detach()).double()
    mask = batch.response_mask & d.isfinite()
    others = mask.clone()
    for row, column in named:
        others[row, column] = False
    size, rest = d[mask].abs(), d[others]
    smallest = d[mask][size.argsort()[: max(1, len(size) - math.ceil(TRIMMED * len(size)))]]
    functions = {"abs_log_ratio": torch.abs, "k3": k3, "mult_error": lambda x: ratio(x.abs()), "mean_ratio": ratio}
    by_name = {}
    for name, function in functions.items():
        mean, without, trimmed = (float(function(x).mean()) for x in (d[mask], rest, smallest))
        by_name[name] = Averages(mean, without, trimmed, float(function(d[mask]).median()))
    return by_name
