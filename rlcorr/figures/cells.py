"""Tokens as cells: counted over two probabilities, or as a map of rows and columns.

Several figures consist of these parts.
"""

import math
from collections.abc import Collection, Sequence
from functools import reduce

import numpy as np
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.figures import canvas
from rlcorr.figures.axes import ratio_axis, span_of
from rlcorr.figures.canvas import BLANK, COOL, KEPT, REJECTED, WARM, Figure, Part, Parts
from rlcorr.types import TokenBatch

CELLS = 96  # on each side of a density
_LARGEST_MASK = 256  # cells on each side; in larger batches neighbouring tokens share a cell


def probability_density(batch: TokenBatch, over: Parts = ()) -> Figure:
    """Draw tokens over (π_rollout, π_old), counted in cells: warm above the diagonal, cool below it.

    The traces of `over` are drawn on top.
    """
    old, rollout = log_prob_pair(batch)
    # Some recorded log-probs are slightly above 0, such as 1e-8.
    p_old, p_rollout = np.exp(old).clip(max=1), np.exp(rollout).clip(max=1)
    counts, edges, _ = np.histogram2d(p_old, p_rollout, bins=CELLS, range=((0, 1), (0, 1)))
    rows, columns = np.indices(counts.shape)
    diagonal = canvas.line("ratio 1", [0, 1], [0, 1], REJECTED, width=1, hoverinfo="skip")
    x = {"title_text": "probability in the sampler, π_rollout", "range": [0, 1], "constrain": "domain"}
    y = {"title_text": "probability in the trainer, π_old", "range": [0, 1], "constrain": "domain", "scaleanchor": "x"}
    if not over:
        return canvas.figure([density(edges, edges, counts, np.sign(rows - columns)), diagonal], height=340, x=x, y=y)
    cells = density(edges, edges, counts, np.sign(rows - columns), faintest=0.3)
    return canvas.figure([cells, diagonal | {"showlegend": False}, *over], height=440, x=x, y=y, legend=True)


def ratio_density(batch: TokenBatch, over: Parts = (), notes: Parts = ()) -> Figure:
    """Draw tokens over (π_rollout, log π_old/π_rollout), counted in cells. This magnifies the difference.

    The axis ±span contains 99.9 % of the tokens.
    """
    old, rollout = log_prob_pair(batch)
    d = old - rollout
    span = span_of(d)
    box = ((-span, span), (0, 1))
    p_rollout = np.exp(rollout).clip(max=1)
    counts, y_edges, x_edges = np.histogram2d(d.clip(-span, span), p_rollout, bins=CELLS, range=box)
    side = np.sign(centres(y_edges))[:, None]
    x = {"title_text": "probability in the sampler, π_rollout", "range": [0, 1]}
    y = {"title_text": "ratio π_old/π_rollout", **ratio_axis(span)}
    shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": REJECTED}}]
    if not over:
        return canvas.figure([density(x_edges, y_edges, counts, side)], height=340, x=x, y=y, shapes=shapes)
    traces = [density(x_edges, y_edges, counts, side, faintest=0.3), *over]
    return canvas.figure(traces, height=440, x=x, y=y, shapes=shapes, notes=notes, legend=True)


def density(
    x_edges: np.ndarray, y_edges: np.ndarray, counts: np.ndarray, side: np.ndarray, *, faintest: float = 0.12
) -> Part:
    """Draw counts as a heatmap, with log(1 + count) as the strength of the colour.

    z is in −1 … 0 … 1 on the two sides of the line, and in 2 … 3 on the line itself.
    """
    strength = np.log1p(counts)
    strength /= max(float(strength.max()), 1.0)
    z = np.where(side == 0, 2 + strength, side * strength)
    below, above, on = ([canvas.fade(c, a) for a in (faintest, 1)] for c in (COOL, WARM, KEPT))
    scale = [[0, below[1]], [0.25, below[0]], [0.2501, above[0]], [0.5, above[1]], [0.75, on[0]], [1, on[1]]]
    return {
        "type": "heatmap",
        "name": "tokens",
        "x": centres(x_edges).astype(np.float32),
        "y": centres(y_edges).astype(np.float32),
        "z": np.where(counts > 0, z, np.nan).astype(np.float32),
        "customdata": counts.astype(np.int32),
        "meta": {"z": "strength of the colour", "detail": "count"},
        "zmin": -1,
        "zmax": 3,
        "colorscale": scale,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "%{customdata} tokens near (%{x:.2f}, %{y:.2f})<extra></extra>",
    }


def token_map(
    name: str, codes: np.ndarray, names: Sequence[str], colours: Sequence[str], possible: Collection[str]
) -> Figure:
    """Draw codes, (B, T) uint8, as cells. Code 0 is blank; code k has the k-th colour and name.

    If several tokens share a cell, it shows the highest code. The legend has the names in `possible`.
    """
    down, across = block_of(codes.shape)
    kinds = len(colours) + 1
    cells = {
        "type": "heatmap",
        "name": name,
        # Small integers in uint8 contain no 0xFF bytes, whose base64 ("////") plotly escapes to six times its size.
        "z": binned(codes),
        "x0": (across - 1) / 2,
        "dx": across,
        "y0": (down - 1) / 2,
        "dy": down,
        "zmin": -0.5,
        "zmax": kinds - 0.5,
        "colorscale": [[edge / kinds, c] for code, c in enumerate((BLANK, *colours)) for edge in (code, code + 1)],
        "showscale": False,
        "meta": {"z": ", ".join(f"{code} {meaning}" for code, meaning in enumerate(("padding", *names)))},
        "hovertemplate": "answer %{y:.0f}, token %{x:.0f}<extra></extra>",
    }
    keys = canvas.legend_keys({n: c for n, c in zip(names, colours, strict=True) if n in possible})
    x = {"title_text": "token", "showgrid": False}
    y = {"title_text": "answer", "showgrid": False, "autorange": "reversed"}
    return canvas.figure([cells, *keys], height=300, x=x, y=y, legend=True)


def block_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return how many rows and how many columns of a map share a cell."""
    down, across = (max(1, math.ceil(n / _LARGEST_MASK)) for n in shape)
    return down, across


def binned(codes: np.ndarray) -> np.ndarray:
    """Return the largest code of each cell. Slices are ten times as fast as numpy's max over two axes."""
    down, across = block_of(codes.shape)
    padded = np.pad(codes, ((0, -codes.shape[0] % down), (0, -codes.shape[1] % across)))
    rows = reduce(np.maximum, (padded[i::down] for i in range(down)))
    return reduce(np.maximum, (rows[:, j::across] for j in range(across)))


def log_prob_pair(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return log π_old and log π_rollout of the real tokens, as flat float64 arrays."""
    if batch.old_log_probs is None:
        raise UsageError("this figure needs old_log_probs; the batch has only rollout_log_probs.")
    old, rollout = (select_values(x, batch.response_mask) for x in (batch.old_log_probs, batch.rollout_log_probs))
    return old.astype(float), rollout.astype(float)


def centres(edges: np.ndarray) -> np.ndarray:
    return (edges[1:] + edges[:-1]) / 2


def select_values(values: Tensor, mask: Tensor) -> np.ndarray:
    """Return the values where the mask is true, as a flat float32 array. numpy selects seven times as fast as torch."""
    return values.detach().float().cpu().numpy()[mask.cpu().numpy()]
