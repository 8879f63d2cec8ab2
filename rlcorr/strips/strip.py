"""A strip: what a correction makes of a batch at every value of the slider of one of its bounds.

What moves with a bound changes at a token only when the bound passes it. So everything is a running sum over the slider
values at which tokens come inside (`analysis.bound_curve`): the work of a few corrections, for all values together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rlcorr.analysis.bound_curve import headline_numbers, moving_correction
from rlcorr.bounds import BAND, BoundId
from rlcorr.config import CorrectionConfig
from rlcorr.strips.bars import Bars, statistic_bars, weight_bars
from rlcorr.strips.cells import Cells, fate_cells
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Strip:
    """Entry k of each part is what `correct`, `metrics` and the figures give for the bound `slider_values[k]`."""

    slider_values: tuple[float, ...]
    numbers: dict[str, Tensor]
    """Metric, without verl's prefix → (K,) float64."""
    weights: Bars
    """Bars of the weight histogram."""
    statistic: Bars | None
    """Bars of the histogram of the rule whose bounds move; None if the weights' bounds move."""
    cells: Cells
    """Cells of the fate mask."""


def strip(
    batch: TokenBatch, correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId = BAND
) -> Strip:
    """Compute the strip of one bound. Values are thresholds as in `at_threshold`, from the tightest to the loosest.

    Raises:
        UsageError: as `correct` does, and for values in another order.
    """
    moved = moving_correction(batch, correction, slider_values, bound)
    rule = moved.bound.rule_index
    return Strip(
        slider_values=tuple(slider_values),
        numbers=headline_numbers(batch, correction, moved),
        weights=weight_bars(batch, correction, moved),
        statistic=None if rule is None else statistic_bars(batch, moved.d, moved.moving, rule),
        cells=fate_cells(batch, correction, moved),
    )


def token_cells(
    batch: TokenBatch, correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId = BAND
) -> Cells:
    """Compute what becomes of every token at every slider value, one cell per token, (B, T).

    The codes are those of `figures.fates.token_fates`. Raises as `strip` does.
    """
    moved = moving_correction(batch, correction, slider_values, bound)
    return fate_cells(batch, correction, moved, merge_cells=lambda fates: fates)
