"""Figures that compare two corrections of one batch, or the tails of two batches. A and B have one colour each."""

import math

import numpy as np

from rlcorr.analysis.comparison import SHARED, shared
from rlcorr.config import CorrectionConfig
from rlcorr.figures.axes import power_axis, tail_axis
from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, Figure, figure, tail_curve
from rlcorr.figures.cells import log_prob_pair, token_map
from rlcorr.types import CorrectionResult, TokenBatch

COLOURS = {"A": ACROSS[1], "B": ACROSS[2]}


def mask_map(
    batch: TokenBatch, a: CorrectionResult, b: CorrectionResult, configs: tuple[CorrectionConfig, CorrectionConfig]
) -> Figure:
    """Draw which tokens both corrections, one or neither train on: rows are sequences, columns are tokens.

    Padding is blank. If tokens share a cell, a difference is shown before agreement. The legend has the outcomes that
    are possible with the two configurations. Raises `UsageError` if the results are of another batch.
    """
    codes = shared(batch, a, b).cpu().numpy()
    a_drops, b_drops = (_may_drop(config) for config in configs)
    is_possible = (True, a_drops and b_drops, b_drops, a_drops)
    possible = [name for name, may_be in zip(SHARED[1:], is_possible, strict=True) if may_be]
    return token_map("shared", codes, SHARED[1:], (KEPT, REJECTED, *COLOURS.values()), possible)


def _may_drop(config: CorrectionConfig) -> bool:
    """Check whether a correction may leave tokens out: by a rule, or by a weight of 0."""
    return bool(config.rollout_rs) or (config.rollout_is is not None and config.rollout_is_mode == "mask")


def tails(a: TokenBatch, b: TokenBatch) -> Figure:
    """Draw the share of the tokens with at least this |log r|, one line per batch. Both axes are logarithmic."""
    differences = {name: np.subtract(*log_prob_pair(batch)) for name, batch in zip(COLOURS, (a, b), strict=True)}
    sizes = {name: np.abs(d[np.isfinite(d)]) for name, d in differences.items()}
    traces = [tail_curve(name, values, COLOURS[name], shares=True) for name, values in sizes.items()]
    x = tail_axis(np.concatenate(list(sizes.values())))
    least = min((1 / len(values) for values in sizes.values() if len(values)), default=0.1)
    y = power_axis(least, 1) | {"title_text": "share of tokens with at least that"}
    return figure(traces, height=300, x=x, y=y | {"range": [math.log10(0.8 * least), 0.05]}, legend=True)
