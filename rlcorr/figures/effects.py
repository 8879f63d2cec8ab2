"""Effects of corrections as stacked bars: which share of the tokens each keeps, clips and zeroes."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcorr.figures.canvas import KEPT, RED, REJECTED, WARM, Figure, Part, fade, figure, literal, vertical_line

ROW = 56
"""Pixels of a row: two lines of text, and the bar below them."""
BAR = 0.27
"""Height of a bar, as a share of its row."""


@dataclass(frozen=True)
class Bar:
    """One correction: its key, its name and what it does in words, and shares of the tokens."""

    key: str
    name: str
    words: str
    kept: float
    """Neither clipped nor zeroed."""
    clipped: float
    zeroed: float
    is_missed: bool = False
    """Whether it keeps less than was promised; then its words are red."""


def effect_bars(bars: Sequence[Bar], chosen: str, promise: float) -> Figure:
    """Draw a stacked bar per correction, the chosen one in a frame, and the promised share as a line."""
    keys = [bar.key for bar in bars]
    parts = {
        "kept": ([bar.kept for bar in bars], fade(KEPT, 0.75)),
        "clipped": ([bar.clipped for bar in bars], WARM),
        "zeroed": ([bar.zeroed for bar in bars], fade(REJECTED, 0.6)),
    }
    traces = [_part(name, keys, shares, colour) for name, (shares, colour) in parts.items()]
    shapes = [vertical_line(x=promise, colour=REJECTED, dash="dot", width=1)]
    if chosen in keys:
        shapes.append(_frame(len(keys) - 1 - keys.index(chosen)))
    x = {
        "range": [-0.005, 1.005],
        "tickformat": ".0%",
        "tickvals": [0, 0.25, 0.5, 0.75, 1],
        "showgrid": False,
        "title_text": "share of your tokens",
    }
    y = {"type": "category", "categoryorder": "array", "categoryarray": keys[::-1], "showticklabels": False}
    y |= {"range": [-0.55, len(keys) - 0.45], "showgrid": False}
    height = ROW * len(keys) + 48
    made = figure(
        traces, height=height, x=x, y=y, shapes=shapes, notes=[_words(bar, bar.key == chosen) for bar in bars]
    )
    return made.update_layout(barmode="stack", margin={"l": 8, "r": 8, "t": 4, "b": 44})


def _part(name: str, keys: list[str], shares: list[float], colour: str) -> Part:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": keys, "x": shares, "width": BAR, "offset": -0.45,
        "marker": {"color": colour}, "hovertemplate": f"{name} %{{x:.2%}}<extra></extra>",
    }  # fmt: skip


def _frame(index: int) -> Part:
    """Return the frame around the row of this index, counted from below."""
    box = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": index - 0.5, "y1": index + 0.48}
    return box | {"line": {"color": KEPT, "width": 2}, "fillcolor": fade(KEPT, 0.08), "layer": "below"}


def _words(bar: Bar, is_chosen: bool) -> Part:
    name = f"<b>{literal(bar.name)}</b>" if is_chosen else literal(bar.name)
    words = f"<span style='color:{RED}'>{literal(bar.words)}</span>" if bar.is_missed else literal(bar.words)
    place = {"x": 0.005, "xref": "paper", "xanchor": "left", "y": bar.key, "yref": "y", "yanchor": "middle"}
    return place | {"yshift": 0.16 * ROW, "align": "left", "text": f"{name}<br>{words}"}
