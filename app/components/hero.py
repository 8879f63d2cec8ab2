"""The picture of the Start page: the tokens of a sentence with their two probabilities, and how runs of a study ended.

Both are HTML, so that they are there before Plotly is. components/js/hero.css is their style.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A token: its text, its probability in the sampler and in the trainer, and its weight; 0 if it is rejected."""

    text: str
    sampler: float
    trainer: float
    weight: float


def tiles(tokens: Sequence[Tile], gap: int, names: tuple[str, str], counts: Sequence[str]) -> str:
    """Return the tokens as HTML.

    Args:
        tokens: The tokens of the sentence.
        gap: The index of the token with the largest gap, which is wider and has labels.
        names: The labels of its two bars.
        counts: What is below each token: how much it counts.
    """
    cells = []
    for index, (token, counted) in enumerate(zip(tokens, counts, strict=True)):
        labels = (html.escape(name) if index == gap else "" for name in names)
        bars = "".join(
            f"<i style='--share:{share:.3f}'><em>{label}</em></i>"
            for share, label in zip((token.sampler, token.trainer), labels, strict=True)
        )
        top, kind = max(token.sampler, token.trainer), " class='rl-gap'" * (index == gap)
        text = html.escape(token.text.strip()) or "␣"
        cells.append(
            f"<li{kind} style='--weight:{min(token.weight, 1):.3f};--top:{top:.3f}'><span>{bars}</span>"
            f"<{'b' if token.weight else 's'}>{text}</{'b' if token.weight else 's'}><small>{counted}</small></li>"
        )
    return f"<ol class='rl-tiles'>{''.join(cells)}</ol>"


def ends(arms: Mapping[str, Sequence[float]], chosen: str, highest: float) -> str:
    """Return how the runs of each arm ended as HTML: a small dot for each run, a large one at their mean.

    Args:
        arms: Name of an arm → a share for each of its runs.
        chosen: The arm that is drawn in the accent.
        highest: The right end of the axis.
    """
    rows = []
    for name, shares in arms.items():
        mean = sum(shares) / len(shares)
        dots = "".join(f"<i style='--share:{share / highest:.3f}'></i>" for share in shares)
        kind = " class='rl-chosen'" * (name == chosen)
        rows.append(
            f"<li{kind}><span>{html.escape(name)}</span><div>{dots}"
            f"<b style='--share:{mean / highest:.3f}'>{mean:.0%}</b></div></li>"
        )
    return f"<ol class='rl-ends'>{''.join(rows)}</ol>"
