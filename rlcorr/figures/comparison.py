"""Figures of two corrections of one batch, or of two batches: A and B have one colour each."""

import math
from dataclasses import dataclass

import numpy as np

from rlcorr.analysis.comparison import SHARED, shared, trained_on
from rlcorr.figures.axes import ratio_axis, span_of
from rlcorr.figures.canvas import (
    ACROSS,
    KEPT,
    REJECTED,
    Figure,
    bars_with_errors,
    error_bars,
    fade,
    figure,
    ranked,
)
from rlcorr.figures.cells import density, pair, ratio_density, token_map
from rlcorr.figures.gradients import USUAL, number_of
from rlcorr.gradients.comparison import GradientComparison
from rlcorr.types import CorrectionResult, TokenBatch

COLOURS = {"A": ACROSS[1], "B": ACROSS[2]}

_CELLS = 96  # per side
_LEAST_SPAN = 0.02  # weights that are all 1 need an axis too


def mask_map(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Figure:
    """Which tokens both, one or neither train on: rows are sequences, columns are tokens, padding is blank. Where
    tokens share a cell, a difference shows. Raises `UsageError` where the results are of another batch."""
    codes = shared(batch, a, b).cpu().numpy()
    return token_map("shared", codes, SHARED[1:], (fade(KEPT, 0.3), REJECTED, *COLOURS.values()))


def weights_against(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Figure:
    """Weight in B over weight in A of the tokens that both train on, counted in cells of two logarithmic axes: warm
    above the diagonal, where B weighs more, cool below it. A note counts the tokens left out."""
    both = batch.response_mask & trained_on(a) & trained_on(b)
    log_a, log_b = (np.log(result.weights[both].double().cpu().numpy()) for result in (a, b))
    span = max(span_of(log_a), span_of(log_b), _LEAST_SPAN)
    box = ((-span, span), (-span, span))
    counts, edges, _ = np.histogram2d(log_b.clip(-span, span), log_a.clip(-span, span), bins=_CELLS + 1, range=box)
    rows, columns = np.indices(counts.shape)
    cells = density(edges, edges, counts, np.sign(rows - columns), faintest=0.3)
    cells["hovertemplate"] = "%{customdata} tokens near (%{x:.2g}, %{y:.2g}) in log w<extra></extra>"
    diagonal = {"type": "scatter", "x": [-span, span], "y": [-span, span], "mode": "lines", "name": "equal"}
    diagonal |= {"hoverinfo": "skip", "line": {"color": REJECTED, "width": 1}}
    left_out = int(batch.response_mask.sum()) - int(both.sum())
    note = {"x": 1, "xref": "paper", "xanchor": "right", "y": 0.08, "text": f"{left_out:,} tokens not in both"}
    axis = ratio_axis(span) | {"constrain": "domain"}
    x, y = ({"title_text": f"weight in {name}", **axis} for name in COLOURS)
    return figure([cells, diagonal], height=300, x=x, y=y | {"scaleanchor": "x"}, notes=[note] if left_out else [])


def gradient_bars(compared: GradientComparison, batch_size: int = USUAL) -> Figure:
    """Progress, bias and noise of both, with 95 % bars."""
    size = number_of(batch_size, compared.a)
    traces = []
    for (name, colour), report in zip(COLOURS.items(), (compared.a, compared.b), strict=True):
        parts = {"progress": report.progress[size], "bias": report.relative_bias, "noise": report.noise[size]}
        traces.append(bars_with_errors(name, parts, colour))
    y = {"title_text": "η; in units of the on-policy gradient", "rangemode": "tozero"}
    made = figure(traces, height=300, x={"type": "category"}, y=y, legend=True)
    return made.update_layout(barmode="group", bargap=0.3)


def differences(compared: GradientComparison, batch_size: int = USUAL) -> Figure:
    """B − A of progress, bias, noise and cosine, with the 95 % of the paired difference; at 0 they are alike."""
    size = number_of(batch_size, compared.a)
    parts = {"cosine": compared.cosine, "noise": compared.noise[size], "bias": compared.bias}
    parts["progress"] = compared.progress[size]
    values = list(parts.values())
    points = {
        "type": "scatter", "mode": "markers", "name": "B − A", "y": list(parts),
        "x": [interval.value for interval in values],
        "marker": {"color": COLOURS["B"], "size": 9},
        "error_x": error_bars(values, COLOURS["B"], thickness=2),
        "hovertemplate": "%{y}: %{x:.3g}<extra></extra>",
    }  # fmt: skip
    nothing = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": REJECTED}}
    x = {"title_text": "B − A"}
    return figure([points], height=300, x=x, y={"type": "category", "showgrid": False}, shapes=[nothing])


# --- two batches ---


@dataclass(frozen=True)
class Densities:
    """The same picture of two batches, over the same axes."""

    a: Figure
    b: Figure


def ratio_densities(a: TokenBatch, b: TokenBatch) -> Densities:
    """Tokens over (π_rollout, log r), with the wider of the two axes for both."""
    span = max(span_of(_log_ratios(batch)) for batch in (a, b))
    return Densities(ratio_density(a, span=span), ratio_density(b, span=span))


def tails(a: TokenBatch, b: TokenBatch) -> Figure:
    """Which share of the tokens differs by at least this |log r|, both axes logarithmic, one line per batch."""
    sizes = {name: np.abs(_log_ratios(batch)) for name, batch in zip(COLOURS, (a, b), strict=True)}
    traces = [ranked(name, of_batch, COLOURS[name], shares=True) for name, of_batch in sizes.items()]
    drawn = np.concatenate([of_batch[of_batch > 0] for of_batch in sizes.values()])
    ends = np.quantile(drawn, [0.1, 1]) if len(drawn) else np.array([1e-3, 1])  # certain tokens hardly differ
    x = {"title_text": "|log r|", "type": "log", "exponentformat": "power", "dtick": 1}
    x |= {"range": [math.log10(ends[0]), math.log10(ends[1]) + 0.1]}
    least = min((1 / len(of_batch) for of_batch in sizes.values() if len(of_batch)), default=0.1)
    y = {"title_text": "share of tokens with at least that", "type": "log", "dtick": 1, "exponentformat": "power"}
    return figure(traces, height=300, x=x, y=y | {"range": [math.log10(0.8 * least), 0.05]}, legend=True)


# --- parts ---


def _log_ratios(batch: TokenBatch) -> np.ndarray:
    """log r of the real tokens whose log-probs are finite."""
    old, rollout = pair(batch)
    return (old - rollout)[np.isfinite(old) & np.isfinite(rollout)]
