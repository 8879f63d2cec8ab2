"""Figures that compare two corrections of one batch, or two batches. A and B have one colour each."""

import math

import numpy as np

from rlcorr.analysis.comparison import SHARED, shared, trained_on
from rlcorr.config import CorrectionConfig
from rlcorr.figures.axes import ratio_axis, span_of, tail_axis
from rlcorr.figures.canvas import (
    ACROSS,
    KEPT,
    REJECTED,
    Figure,
    bars_with_errors,
    figure,
    grouped_bars,
    line,
    rows_with_errors,
    tail_curve,
)
from rlcorr.figures.cells import CELLS, density, log_prob_pair, ratio_density, token_map
from rlcorr.figures.gradients import USUAL, size_index
from rlcorr.gradients.report import GradientComparison
from rlcorr.types import CorrectionResult, TokenBatch

COLOURS = {"A": ACROSS[1], "B": ACROSS[2]}

_LEAST_SPAN = 0.02  # an axis for weights that are all 1


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


def weights_against(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Figure:
    """Draw the weight in B over the weight in A of the tokens that both train on, counted in cells of logarithmic axes.

    Above the diagonal, where B has the larger weight, cells have the colour of B; below it that of A. A note counts the
    tokens that are left out.
    """
    both = batch.response_mask & trained_on(a) & trained_on(b)
    log_a, log_b = (np.log(result.weights[both].double().cpu().numpy()) for result in (a, b))
    span = max(span_of(log_a), span_of(log_b), _LEAST_SPAN)
    box = ((-span, span), (-span, span))
    counts, edges, _ = np.histogram2d(log_b.clip(-span, span), log_a.clip(-span, span), bins=CELLS + 1, range=box)
    rows, columns = np.indices(counts.shape)
    cells = density(
        edges, edges, counts, np.sign(rows - columns), faintest=0.3, colours=(COLOURS["A"], COLOURS["B"], KEPT)
    )
    cells["hovertemplate"] = "%{customdata} tokens near (%{x:.2g}, %{y:.2g}) in log w<extra></extra>"
    diagonal = line("equal", [-span, span], [-span, span], REJECTED, width=1, hoverinfo="skip")
    left_out = int(batch.response_mask.sum()) - int(both.sum())
    note = {"x": 1, "xref": "paper", "xanchor": "right", "y": 0.08, "text": f"{left_out:,} tokens not in both"}
    axis = ratio_axis(span) | {"constrain": "domain"}
    x, y = ({"title_text": f"weight in {name}", **axis} for name in COLOURS)
    return figure([cells, diagonal], height=300, x=x, y=y | {"scaleanchor": "x"}, notes=[note] if left_out else [])


def gradient_bars(compared: GradientComparison, batch_size: int = USUAL) -> Figure:
    """Draw progress, bias and noise of both corrections with 95 % bars."""
    size = size_index(batch_size, compared.a)
    groups = []
    for (name, colour), report in zip(COLOURS.items(), (compared.a, compared.b), strict=True):
        parts = {"progress": report.progress[size], "bias": report.relative_bias, "noise": report.noise[size]}
        groups.append(bars_with_errors(name, parts, colour))
    return grouped_bars(groups, y={"title_text": "η; in units of the on-policy gradient", "rangemode": "tozero"})


def differences(compared: GradientComparison, batch_size: int = USUAL) -> Figure:
    """Draw B − A of progress, bias, noise and cosine, with the 95 % interval of the paired difference.

    At 0 the two corrections are equal.
    """
    size = size_index(batch_size, compared.a)
    parts = {"cosine": compared.cosine, "noise": compared.noise[size], "bias": compared.bias}
    parts["progress"] = compared.progress[size]
    points = {"type": "scatter", "mode": "markers", "marker": {"color": COLOURS["B"], "size": 9}}
    rows = rows_with_errors("B − A", parts, COLOURS["B"], "%{x:.3g}", thickness=2, **points)
    zero = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": REJECTED}}
    x = {"title_text": "B − A"}
    return figure([rows], height=300, x=x, y={"type": "category", "showgrid": False}, shapes=[zero])


# --- two batches ---


def ratio_densities(a: TokenBatch, b: TokenBatch) -> tuple[Figure, Figure]:
    """Draw tokens over (π_rollout, log r), one figure per batch, with the wider of the two axes for both."""
    span = max(span_of(_log_ratios(batch)) for batch in (a, b))
    return ratio_density(a, span=span), ratio_density(b, span=span)


def tails(a: TokenBatch, b: TokenBatch) -> Figure:
    """Draw the share of the tokens with at least this |log r|, one line per batch. Both axes are logarithmic."""
    sizes = {name: np.abs(_log_ratios(batch)) for name, batch in zip(COLOURS, (a, b), strict=True)}
    traces = [tail_curve(name, values, COLOURS[name], shares=True) for name, values in sizes.items()]
    x = tail_axis(np.concatenate(list(sizes.values())))
    least = min((1 / len(values) for values in sizes.values() if len(values)), default=0.1)
    y = {"title_text": "share of tokens with at least that", "type": "log", "dtick": 1, "exponentformat": "power"}
    return figure(traces, height=300, x=x, y=y | {"range": [math.log10(0.8 * least), 0.05]}, legend=True)


# --- parts ---


def _log_ratios(batch: TokenBatch) -> np.ndarray:
    """Return log r of the real tokens with finite log-probs."""
    old, rollout = log_prob_pair(batch)
    return (old - rollout)[np.isfinite(old) & np.isfinite(rollout)]
