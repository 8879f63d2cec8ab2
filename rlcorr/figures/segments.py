"""The mismatch by the age of the weights, and by turn, as bars."""

from collections.abc import Sequence

import numpy as np

from rlcorr.analysis.segments import Segment
from rlcorr.figures.canvas import ACROSS, Figure, fade, figure


def lag_bars(segments: Sequence[Segment]) -> Figure:
    """Draw mean |log r| of the tokens over the lag of the weights that sampled them (`analysis.segments.by_lag`)."""
    return _bars("lag", "updates between sampling and scoring", segments)


def turn_bars(segments: Sequence[Segment]) -> Figure:
    """Draw mean |log r| of the tokens over their turn, counted from 0 (`analysis.segments.by_turn`)."""
    return _bars("turn", "turn", segments)


def _bars(name: str, title: str, segments: Sequence[Segment]) -> Figure:
    numbers = np.array([segment.number for segment in segments])
    bars = {
        "type": "bar", "name": name, "x": numbers,
        "y": np.array([segment.abs_log_ratio for segment in segments], np.float32),
        "marker": {"color": fade(ACROSS[0], 0.7)}, "width": 0.6,
        "customdata": np.array([[segment.tokens, segment.k3] for segment in segments]),
        "hovertemplate": name + " %{x}: mean |log r| %{y:.2g}, k3 %{customdata[1]:.2g}, "
        "%{customdata[0]} tokens<extra></extra>",
    }  # fmt: skip
    x = {"title_text": title, "tickvals": numbers, "tickformat": "d"}
    return figure([bars], height=300, x=x, y={"title_text": "mean |log r|", "rangemode": "tozero"})
