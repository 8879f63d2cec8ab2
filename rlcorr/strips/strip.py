"""A strip: what a correction makes of a batch, at every place of the slider of one of its bounds.

What moves with a bound changes at a token only when the bound passes it. So everything is a running sum over the place
at which each token comes inside: the work of a few corrections, for all places together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rlcorr.bounds import Side, moved_rule
from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs, require
from rlcorr.ratios import log_ratio
from rlcorr.strips.bars import Bars, statistic_bars, weight_bars
from rlcorr.strips.cells import Cells, fate_cells
from rlcorr.strips.entries import Entries, Opening, entries, opening
from rlcorr.strips.numbers import Weights, headline_numbers, norm_factors, of_tokens, token_weights
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Strip:
    """Place k of each part is what `correct`, `metrics` and the figures give for the bound `places[k]`."""

    places: tuple[float, ...]
    numbers: dict[str, Tensor]
    """Metric, without verl's prefix → (K,) float64."""
    weights: Bars
    """Of the weight histogram."""
    statistic: Bars | None
    """Of the histogram of the rule whose bounds move; None where the weights' bounds do."""
    cells: Cells
    """Of the fate mask."""


def strip(
    batch: TokenBatch,
    correction: CorrectionConfig,
    places: Sequence[float],
    *,
    rule: int | None = None,
    side: Side = "band",
) -> Strip:
    """Of the bounds of the weights, or of the rule with this index; without weights of the first rule. The places are
    bounds as in `at_threshold`, from the tightest to the loosest (`slider_places`).

    Raises `UsageError` where `correct` does, and for places in another order.
    """
    at = _opened(batch, correction, places, rule, side)
    return Strip(
        places=tuple(places),
        numbers=_numbers(batch, correction, at),
        weights=weight_bars(batch, at.d, at.items, correction, at.moving, at.rule, at.factors),
        statistic=None if at.rule is None else statistic_bars(batch, at.d, at.moving, at.rule),
        cells=fate_cells(batch, correction, at.of, at.rule),
    )


def numbers_over(
    batch: TokenBatch,
    correction: CorrectionConfig,
    places: Sequence[float],
    *,
    rule: int | None = None,
    side: Side = "band",
) -> dict[str, Tensor]:
    """`Strip.numbers` alone. Raises as `strip` does."""
    return _numbers(batch, correction, _opened(batch, correction, places, rule, side))


@dataclass(frozen=True)
class _Opened:
    """What the parts of a strip share."""

    rule: int | None
    moving: Opening
    d: Tensor  # (B, T)
    of: Entries
    items: Weights
    factors: Tensor  # (K,)


def _opened(
    batch: TokenBatch, correction: CorrectionConfig, places: Sequence[float], rule: int | None, side: Side
) -> _Opened:
    require(batch, correction)
    rule = moved_rule(correction, rule)
    moving = opening(correction, places, rule, side)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    of = entries(batch, d, correction, moving, rule)
    weights = token_weights(batch, d, correction, rule)
    factors = norm_factors(batch, weights, correction, moving, of, rule)
    return _Opened(rule, moving, d, of, of_tokens(batch, weights, of), factors)


def _numbers(batch: TokenBatch, correction: CorrectionConfig, at: _Opened) -> dict[str, Tensor]:
    return headline_numbers(batch, at.items, correction, at.moving, at.of, at.rule, at.factors)


def token_cells(
    batch: TokenBatch,
    correction: CorrectionConfig,
    places: Sequence[float],
    *,
    rule: int | None = None,
    side: Side = "band",
) -> Cells:
    """What becomes of every token at every place, (B, T): each has its cell, as in `figures.correction.token_fates`.
    Raises as `strip` does."""
    require(batch, correction)
    rule = moved_rule(correction, rule)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    of = entries(batch, d, correction, opening(correction, places, rule, side), rule)
    return fate_cells(batch, correction, of, rule, shared=lambda fates: fates)
