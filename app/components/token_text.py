"""Responses as text, coloured token by token. Each token can be opened with the mouse or the keyboard."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import state
from streamlit.components.v2 import component

from components.sources import script, style
from rlcorr.figures.canvas import COOL, WARM, fade

SHADES = 20
"""Number of shades on either side of ratio 1."""
STRONGEST = 0.7
"""Opacity of full colour: the text above it must stay legible."""
TOKENS_PER_PAGE, RESPONSES_PER_PAGE = 4000, 20
"""A longer response is split over pages: a browser takes 3 s to draw 16,000 tokens."""

HTML = """<div class="legend"></div><div class="grid" role="grid"></div>"""
_mount = component("rlcorr_token_text", html=HTML, css=style("token_text.css"), js=script("token_text.js"))


def token_text(
    responses: Sequence[Mapping[str, Any]],
    opened: tuple[int, int] | None,
    *,
    span: float,
    words: dict[str, str],
    fates: Sequence[str],
    key: str,
    on_open: Callable[[], None],
) -> None:
    """Draw the responses.

    Args:
        responses: For each response, or piece of a long one, its `row`, the column of its first token (`start`), its
            `heading` and `prompt`, and lists with one entry per token: `texts`, `ratios`, `shades` (an index into the
            colours, `SHADES` at ratio 1) and `fates` (an index into `rlcorr.figures.fates.FATES`).
        opened: Row and column of the opened token.
        span: The |log r| that is shown in full colour.
        words: The texts `ratio`, `rejected`, `bounded` and `grid`.
        fates: A text for each index of `fates`.
        key: Streamlit's key of the component.
        on_open: Called when a token is opened; st.session_state[key]["open"] is then its row and column.
    """
    legend = {"words": words, "palette": palette(), "ticks": ticks(span), "fates": list(fates)}
    data = {
        "key": key,
        "responses": list(responses),
        "legend": legend,
        "opened": opened and {"row": opened[0], "column": opened[1]},
        "run": state.run_number(),
    }
    _mount(data=data, key=key, on_open_change=on_open)


def palette() -> list[str]:
    """Return the colours from the coolest to the warmest; the one in the middle, for ratio 1, is transparent."""
    strengths = [STRONGEST * abs(i) / SHADES for i in range(-SHADES, SHADES + 1)]
    return [fade(COOL if i < SHADES else WARM, round(a, 3)) for i, a in enumerate(strengths)]


def ticks(span: float) -> list[str]:
    """Return the ratios at full colour, at half strength, and 1, for the legend.

    Half strength is at a quarter of the span, because the strength is the root of |log r|. Two digits are shown; of a
    ratio near 1, two digits of its distance from 1.
    """
    return [_ratio(share * span) for share in (-1.0, -0.25, 0.0, 0.25, 1.0)]


def _ratio(d: float) -> str:
    if abs(d) < math.log(2):
        return f"{1 + float(f'{math.expm1(d):.2g}'):.10g}"
    return f"{math.exp(d):.2g}".replace("e-0", "e−").replace("e+0", "e")


def pages_of(rows: Sequence[int], lengths: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Split the rows into pages of responses and of pieces of long ones: (row, column of its first token).

    A page has at most `RESPONSES_PER_PAGE` of them and `TOKENS_PER_PAGE` tokens.
    """
    pages: list[list[tuple[int, int]]] = []
    tokens = 0
    for row, start in [(i, start) for i in rows for start in range(0, max(lengths[i], 1), TOKENS_PER_PAGE)]:
        length = min(lengths[row] - start, TOKENS_PER_PAGE)
        tokens += length
        if not pages or len(pages[-1]) == RESPONSES_PER_PAGE or tokens > TOKENS_PER_PAGE:
            pages.append([])
            tokens = length
        pages[-1].append((row, start))
    return pages
