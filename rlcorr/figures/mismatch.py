"""The mismatch of the two log-probs: over both probabilities, in the tail, by position, token, age, turn and length.

Tokens are left out if one of their log-probs is not finite; `triage` counts them.
"""

import functools
import html
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlcorr.analysis.regions import Region, bounds_weights, region, sequence_bounds, token_rules
from rlcorr.analysis.segments import Segment
from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.figures import canvas
from rlcorr.figures.axes import ratio_axis, span_of, tail_axis
from rlcorr.figures.canvas import ACROSS, COOL, KEPT, REJECTED, WARM, Figure, Part
from rlcorr.figures.cells import CELLS, density, log_prob_pair, probability_density, ratio_density
from rlcorr.measuring.gap_parts import age_part, engine_part
from rlcorr.ratios import log_ratio
from rlcorr.records.step_files import StepRecord
from rlcorr.records.token_texts import END, pieces, text_kind
from rlcorr.types import TokenBatch

Methods = Mapping[str, CorrectionConfig]

_GRID = (1 - np.cos(np.linspace(0.01, math.pi - 0.01, 161))) / 2  # dense near 0 and 1, where the boundaries bend
_POSITIONS = 60  # largest number of bins of `by_position`
_SHOWN = 20  # bars of `by_token`
_TOKEN_DETAILS = ("id", "times", "mean |log r|", "mean log r")
_FEWEST = 5  # tokens needed to draw a mean
_SEQUENCES = 2000  # up to here they are drawn one by one; more are counted in cells


# --- over the two probabilities ---


def acceptance(batch: TokenBatch, methods: Methods, *, magnified: bool = False) -> Figure:
    """Draw tokens over (π_rollout, π_old), with the boundaries of the region that each method leaves unchanged.

    `magnified` draws them over (π_rollout, log r). Boundaries of capped weights are dashed, those of rejection are
    solid. Raises `UsageError` for a method without rules or bounds at token level.
    """
    regions, log_rollout = {name: _on_grid(config) for name, config in methods.items()}, torch.tensor(_GRID).log()
    if not magnified:
        sides = {name: (edges.lower.exp(), edges.upper.exp()) for name, edges in regions.items()}
        return probability_density(batch, _outlines(methods, sides))
    sides = {name: (edges.lower - log_rollout, edges.upper - log_rollout) for name, edges in regions.items()}
    old, rollout = log_prob_pair(batch)
    span = span_of(old - rollout)
    # A curve of NaN does not reach the axis either.
    beyond = [name for name, edges in sides.items() if not any(bool((edge.abs() <= span).any()) for edge in edges)]
    note = {"x": 1, "xref": "paper", "xanchor": "right", "y": 0.99, "text": f"outside this axis: {', '.join(beyond)}"}
    return ratio_density(batch, _outlines(methods, sides), [note] if beyond else [])


@functools.lru_cache(maxsize=128)
def _on_grid(config: CorrectionConfig) -> Region:
    return region(config, torch.tensor(_GRID).log())


def _outlines(methods: Methods, sides: Mapping[str, tuple[Tensor, Tensor]]) -> list[Part]:
    """Draw one trace per method, with a gap between its lower and its upper boundary."""
    traces, colours, x = [], canvas.colours_of(sides), _with_gap(_GRID, _GRID)
    for name, (lower, upper) in sides.items():
        capped = bounds_weights(methods[name]) and methods[name].rollout_is_mode == "truncate"
        dash = "dash" if capped and not token_rules(methods[name]) else "solid"
        y = _with_gap(lower.numpy(), upper.numpy())
        traces.append(canvas.line(html.escape(name), x, y, colours[name], dash=dash, hoverinfo="name"))
    return traces


# --- its size ---


def tail(batch: TokenBatch) -> Figure:
    """Draw how many tokens have at least this |log r|, on logarithmic axes.

    There is one line for all tokens, one for r > 1 and one for r < 1.
    """
    d, _ = _differences(batch)
    return _tails({"all": (np.abs(d), REJECTED), "r > 1": (d[d > 0], WARM), "r < 1": (-d[d < 0], COOL)}, len(d))


def tail_of_parts(batch: TokenBatch) -> Figure:
    """Draw the same for the whole gap and its two parts. Raises `UsageError` without sampled_log_probs."""
    parts = {"whole gap": (batch, REJECTED), "sampler": (engine_part(batch), COOL), "age": (age_part(batch), WARM)}
    sizes = {name: (np.abs(_differences(part)[0]), colour) for name, (part, colour) in parts.items()}
    return _tails(sizes, int(batch.response_mask.sum()))


def _tails(groups: Mapping[str, tuple[np.ndarray, str]], tokens: int) -> Figure:
    """Draw the tails of sizes ≥ 0. The axes are those of the first group and of this number of tokens."""
    traces = [canvas.tail_curve(name, values, colour) for name, (values, colour) in groups.items()]
    x = tail_axis(next(iter(groups.values()))[0])
    top = math.log10(max(tokens, 10)) + 0.05
    y = {"title_text": "tokens with at least that", "type": "log", "dtick": 1, "range": [math.log10(0.8), top]}
    return canvas.figure(traces, height=300, x=x, y=y | {"exponentformat": "none"}, legend=True)


# --- where it is ---


def by_position(batch: TokenBatch) -> Figure:
    """Draw mean, median and the 5 to 95 % band of log r over the position in the response, in at most 60 bins.

    Bins with fewer than five tokens are left out.
    """
    d, real = _differences(batch)
    width = max(1, math.ceil(real.shape[1] / _POSITIONS))
    bin_of_token = np.nonzero(real.cpu().numpy())[1] // width
    count = np.bincount(bin_of_token)
    groups = np.split(d[np.argsort(bin_of_token, kind="stable")], np.cumsum(count)[:-1])
    bins = np.nonzero(count >= _FEWEST)[0].tolist()
    x, values = [b * width + (width + 1) / 2 for b in bins], [groups[b] for b in bins]  # positions count from 1
    low, middle, high = np.array([np.quantile(v, (0.05, 0.5, 0.95)) for v in values]).reshape(-1, 3).T.tolist()
    mean = [float(v.mean()) for v in values]
    band = canvas.band("5 to 95 %", x, low, high, REJECTED)
    counts = count[bins].astype(np.int32)
    lines = [_centre("median", x, middle, ACROSS[0], counts), _centre("mean", x, mean, ACROSS[4], counts)]
    span = max(1.1 * max(map(abs, [*low, *high, *mean]), default=0.0), 1e-4)
    y = {"title_text": "ratio π_old/π_rollout", **ratio_axis(span)}
    axis = {"title_text": "position in the response", "tickformat": "d"}
    return canvas.figure([band, *lines], height=300, x=axis, y=y, legend=True)


def _centre(name: str, x: Sequence[float], y: Sequence[float], colour: str, counts: np.ndarray) -> Part:
    mode = "lines+markers" if len(x) <= 12 else "lines"
    hover = f"log r %{{y:.2g}}, %{{customdata}} tokens<extra>{name}</extra>"
    return canvas.line(name, x, y, colour, mode=mode, marker={"size": 5}, customdata=counts, hovertemplate=hover)


def by_token(batch: TokenBatch, labels: Mapping[int, str]) -> Figure:
    """Draw the 20 token ids with the largest mean of |log r|, of those that occur at least five times.

    Bars are warm if the mean log r of the id is above 0. For `labels` see `token_labels`. Raises `UsageError` without
    ids.
    """
    if batch.response_ids is None:
        raise UsageError("a figure by token needs response_ids; this batch has none.")
    d, real = _differences(batch)
    ids, group = np.unique(batch.response_ids[real].cpu().numpy(), return_inverse=True)
    count = np.bincount(group, minlength=len(ids))
    size, net = (np.bincount(group, weights=v, minlength=len(ids)) for v in (np.abs(d), d))
    value = np.where(count >= _FEWEST, size / count, 0)
    top = np.argsort(-value, kind="stable")[:_SHOWN]
    top = top[value[top] > 0][::-1]  # the largest bar on top
    bars = {
        "type": "bar", "name": "tokens", "orientation": "h", "x": value[top].astype(np.float32),
        "y": np.arange(len(top)), "marker": {"color": [WARM if n > 0 else COOL for n in net[top]]}, "width": 0.75,
        "meta": dict(zip(("detail", *(f"detail {n}" for n in (2, 3, 4))), _TOKEN_DETAILS, strict=True)),
        "customdata": np.stack([ids[top], count[top], size[top] / count[top], net[top] / count[top]], 1),
        "hovertemplate": "id %{customdata[0]}, %{customdata[1]} times: mean |log r| %{customdata[2]:.2g}, mean log r "
        "%{customdata[3]:.2g}<extra></extra>",
    }  # fmt: skip
    names = [html.escape(labels.get(i, f"id {i}")) for i in ids[top].tolist()]
    y = {"tickvals": np.arange(len(top)), "ticktext": names, "showgrid": False, "range": [-0.6, len(top) - 0.4]}
    x = {"title_text": "mean |log r|", "rangemode": "tozero"}
    return canvas.figure([bars], height=60 + 17 * max(len(top), 4), x=x, y=y)


def token_labels(record: StepRecord) -> dict[int, str]:
    """Return the texts of token ids if they are known, otherwise an empty dict."""
    if record.batch.response_ids is None or text_kind(record) not in ("texts", "characters"):
        return {}
    rows = zip(record.batch.response_ids.tolist(), pieces(record), strict=True)
    texts = {token: text for ids, row_texts in rows for token, text in zip(ids, row_texts, strict=False)}
    return {token: text if text == END else repr(text) for token, text in texts.items()}


def lag_bars(segments: Sequence[Segment]) -> Figure:
    """Draw mean |log r| of the tokens over the lag of the weights that sampled them (`analysis.segments.by_lag`)."""
    return _segment_bars("lag", "updates between sampling and scoring", segments)


def turn_bars(segments: Sequence[Segment]) -> Figure:
    """Draw mean |log r| of the tokens over their turn, counted from 0 (`analysis.segments.by_turn`)."""
    return _segment_bars("turn", "turn", segments)


def _segment_bars(name: str, title: str, segments: Sequence[Segment]) -> Figure:
    numbers = np.array([segment.number for segment in segments])
    bars = {
        "type": "bar", "name": name, "x": numbers,
        "y": np.array([segment.abs_log_ratio for segment in segments], np.float32),
        "marker": {"color": canvas.fade(ACROSS[0], 0.7)}, "width": 0.6,
        "customdata": np.array([[segment.tokens, segment.k3] for segment in segments]),
        "hovertemplate": name + " %{x}: mean |log r| %{y:.2g}, k3 %{customdata[1]:.2g}, "
        "%{customdata[0]} tokens<extra></extra>",
    }  # fmt: skip
    x = {"title_text": title, "tickvals": numbers, "tickformat": "d"}
    return canvas.figure([bars], height=300, x=x, y={"title_text": "mean |log r|", "rangemode": "tozero"})


# --- by sequence ---


def by_length(batch: TokenBatch, methods: Methods) -> Figure:
    """Draw Σ log r of each sequence over its length T.

    The dotted lines are ±2σ√T, with σ the standard deviation of log r of one token: independent noise stays between
    them. Solid lines are the bounds of the methods on the product and on the geometric mean.
    """
    d, real = _differences(batch)
    row, sequences = np.nonzero(real.cpu().numpy())[0], len(real)
    length, total = np.bincount(row, minlength=sequences), np.bincount(row, weights=d, minlength=sequences)
    length, total = length[length > 0], total[length > 0]
    longest, sigma = int(length.max(initial=1)), float(np.std(d)) if len(d) else 0.0
    span = max(span_of(total), 2.2 * sigma * math.sqrt(longest))
    x = np.unique(np.geomspace(1, longest, 60).round()) if longest > 1 else np.array([0.5, 1.5])
    cone = 2 * sigma * np.sqrt(x)
    noise = canvas.line("noise, 2σ√T", _with_gap(x, x), _with_gap(-cone, cone), REJECTED, dash="dot", hoverinfo="name")
    traces = [_sequences(length, total, span), noise, *_bands(methods, x)]
    across = {"title_text": "length of the response, T", "range": [0, longest * 1.05 + 1], "tickformat": "d"}
    y = {"title_text": "product of the ratios", **ratio_axis(span)}
    return canvas.figure(traces, height=300, x=across, y=y, legend=True)


def _sequences(length: np.ndarray, total: np.ndarray, span: float) -> Part:
    if len(length) <= _SEQUENCES:
        colours = np.where(total > 0, WARM, np.where(total < 0, COOL, KEPT))
        return {
            "type": "scatter", "mode": "markers", "name": "sequences", "x": length.astype(np.int32),
            "y": total.clip(-span, span).astype(np.float32),
            "marker": {"color": [canvas.fade(c, 0.5) for c in colours], "size": 5}, "showlegend": False,
            "hovertemplate": "%{x} tokens, Σ log r %{y:.3g}<extra></extra>",
        }  # fmt: skip
    box = ((-span, span), (0, length.max() * 1.05 + 1))
    counts, y, x = np.histogram2d(total.clip(-span, span), length, bins=CELLS, range=box)
    side = np.sign(y[1:] + y[:-1])[:, None]
    cells = density(x, y, counts, side, faintest=0.3)
    return cells | {"name": "sequences", "hovertemplate": "%{customdata} sequences<extra></extra>"}


def _bands(methods: Methods, x: np.ndarray) -> list[Part]:
    """Draw the two bounds of each method over the lengths. Infinite bounds are not drawn."""
    traces, colours = [], canvas.colours_of(methods)
    for name, config in methods.items():
        for low, high in sequence_bounds(config, torch.tensor(x)):
            y = _with_gap(low.numpy(), high.numpy())
            y = np.where(np.isfinite(y), y, np.nan)
            traces.append(canvas.line(html.escape(name), _with_gap(x, x), y, colours[name], hoverinfo="name"))
    return traces


def _with_gap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, [np.nan], second]).astype(np.float32)


# --- parts ---


def _differences(batch: TokenBatch) -> tuple[np.ndarray, Tensor]:
    """Return log r of the real tokens with finite log-probs, and their mask, (B, T).

    Raises `UsageError` without old_log_probs.
    """
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    real = batch.response_mask & torch.isfinite(d)
    return d[real].double().cpu().numpy(), real
