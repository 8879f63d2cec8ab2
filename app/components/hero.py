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
        tag = "b" if token.weight else "s"
        cells.append(
            f"<div role='listitem'{kind} style='--weight:{min(token.weight, 1):.3f};--top:{top:.3f}'>"
            f"<span>{bars}</span>"
            f"<{tag}>{text}</{tag}><small>{counted}</small></div>"
        )
    return f"<div role='list' class='rl-tiles'>{''.join(cells)}</div>"


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
        dots = "".join(f"<i class='rl-run' style='--share:{share / highest:.3f}'></i>" for share in shares)
        kind = " class='rl-chosen'" * (name == chosen)
        rows.append(
            f"<div role='listitem'{kind}>{html.escape(name)}<p>{dots}"
            f"<b class='rl-mean' style='--share:{mean / highest:.3f}'>{100 * mean:.0f} %</b></p></div>"
        )
    return f"<div role='list' class='rl-ends'>{''.join(rows)}</div>"
