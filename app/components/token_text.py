"""Responses as text coloured token by token, each of which can be opened with the mouse or the keyboard."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from state.session import new_run
from streamlit.components.v2 import component

from components.sources import script, style
from rlcorr.figures.canvas import COOL, WARM, fade

SHADES = 20
"""Steps of colour on either side of ratio 1."""
STRONGEST = 0.7
"""Opacity of full colour: the text above it must stay legible."""
TOKENS_PER_PAGE, RESPONSES_PER_PAGE = 4000, 20


HTML = """<div class="legend"></div><div class="grid" role="grid"></div>"""


_mount = component("rlcorr_token_text", html=HTML, css=style("token_text.css"), js=script("token_text.js"))


@dataclass(frozen=True)
class ShownResponse:
    """One response as it is drawn; the lists have one entry per token."""

    row: int
    heading: str
    prompt: str
    texts: list[str]
    ratios: list[str]
    shades: list[int]
    """Index into the colours, `SHADES` at ratio 1."""
    fates: list[int]
    """Index into `plots.FATES`."""


def token_text(
    responses: Sequence[ShownResponse],
    opened: tuple[int, int] | None,
    *,
    span: float,
    words: dict[str, str],
    fates: Sequence[str],
    key: str,
    on_open: Callable[[], None],
) -> None:
    """Draw the responses. `span` is the |log r| of full colour; `words` has ratio, rejected, bounded and grid. When a
    token is opened, `on_open` is called, and st.session_state[key]["open"] is its row and column."""
    legend = {"words": words, "palette": palette(), "ticks": ticks(span), "fates": list(fates)}
    place = None if opened is None else {"row": opened[0], "column": opened[1]}
    data = {
        "key": key,
        "responses": [asdict(r) for r in responses],
        "legend": legend,
        "opened": place,
        "run": new_run(),
    }
    _mount(data=data, key=key, on_open_change=on_open)


def palette() -> list[str]:
    """From the coolest to the warmest, nothing at ratio 1."""
    strengths = [STRONGEST * abs(i) / SHADES for i in range(-SHADES, SHADES + 1)]
    return [fade(COOL if i < SHADES else WARM, round(a, 3)) for i, a in enumerate(strengths)]


def ticks(span: float) -> list[str]:
    """Ratios at full colour, half way, and 1. Half way is a quarter of the span: strength is the root of |log r|."""
    shares = (-1.0, -0.25, 0.0, 0.25, 1.0)
    return [f"{math.exp(share * span):.2g}" for share in shares]


def pages_of(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """The rows in pages of at most twenty responses, and of fewer where these are long: one at least."""
    pages: list[list[int]] = []
    tokens = 0
    for row in rows:
        tokens += lengths[row]
        if not pages or len(pages[-1]) == RESPONSES_PER_PAGE or tokens > TOKENS_PER_PAGE:
            pages.append([])
            tokens = lengths[row]
        pages[-1].append(row)
    return pages
