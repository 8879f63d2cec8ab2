"""Every sentence the app says, and the one way to show text that the app did not write."""

import html
import math
import re
from collections.abc import Mapping
from typing import Literal

from rlcorr.teaching.glossary import define

EXPLAIN = (
    "A language model in training writes answers with a fast engine (vLLM) and learns from them with a slower, more "
    "exact program (the trainer). Both hold the same weights, yet they give the same token slightly different "
    "probabilities, so the model learns from text that it would not have written quite like that. The correction "
    "compares the two probabilities of every token, their ratio, and then counts a token more, counts it less, or "
    "leaves it out."
)

LOOK = {
    "Start": "The program that writes answers and the one that learns from them give the same token different "
    "probabilities. Here you see by how much, what every known correction makes of it, and what that does to learning. "
    "Open one of three trainings: everything in it is set, and nothing that you press can break it.",
    "Learn": "Look for the lesson, the word or the preset that answers your question.",
    "Training": "Look for a mismatch that climbs over the steps, and for what the reward does after it.",
    "Mismatch": "Look for tokens outside a method's lines, and for a mismatch that grows along the response.",
    "Gradient": "Look for a bias that its interval tells from 0, and for what the noise costs beside it.",
    "Correction bench": "Look for the bounds that touch few tokens and keep the effective sample size (ESS) high.",
    "Compare": "Look for tokens that only one of the two trains on, and for differences that intervals tell from 0.",
    "Tokens": "Look for the tokens that carry the mismatch: open one and follow its numbers through the formulas.",
}
"""One sentence per page title."""

COLOURS = "Warm: ratio above 1. Cool: ratio below 1. Green: on the line, or kept. Grey: rejected. Blank: padding."

WEIGHTS = (
    "Bars: final weights of the kept tokens. Grey line: the same tokens before the bounds. Counts are logarithmic; "
    "the outermost bars hold everything beyond."
)
STATISTIC = "What the rule compares with its bounds (dashed). Grey bars lie outside and are rejected."
MASK = "Rows are sequences, columns are tokens. Where several tokens share a cell, the most severe outcome shows."

LEVEL = (
    "What a weight is: each token's own ratio, the product of the ratios of its sequence, or their geometric mean. "
    "None: every token counts 1."
)
MODE = "What happens to a weight outside its bounds: it becomes the bound (truncate), or 0 (mask)."
RULES = "Rules that leave out tokens, or whole sequences, whose divergence lies outside the bounds."
DENOMINATOR = define("denominator")
NORMALISE = "Divide the weights by their mean over what is kept, or leave them as they are."

CURVES_OVER = (
    "The whole range of the bound that is dragged, the others of its kind as they are. Dotted: where it stands. "
    "Weights and each rule are taken alone."
)
LEFT_OVER = "How far apart the two policies are on what is kept, and how uneven the weights are that remain."
Budget = Literal["keep", "ess"]
BUDGETS: dict[str, Budget] = {"of the tokens inside": "keep", "effective sample size": "ess"}
BUDGET = "Say what you can afford, and the bound follows."
USE_IT = "The configuration as it stands, ready to copy."
TOLERANCE = (
    "A bound on a product of {length:.0f} ratios, the mean length here, allows each token a mean factor between "
    "{lower} and {upper}."
)
LR_FACTOR = (
    "What rejection multiplies the step by: the loss is divided by all tokens, but only the kept ones add to it."
)

UPLOAD = (
    "Parquet or JSON Lines with a response per row, .npz or .safetensors with arrays and a mask. Needed are the "
    "log-probs of the engine and of the trainer: rollout_log_probs and old_log_probs, or as NeMo RL, prime-rl, slime "
    "and verl call them. The file stays on this machine and is forgotten when the app ends."
)
UPLOADED = "Your file {name}."

NO_RUNS = "No runs yet in {root}. Record one with `make train` or `python -m rlcorr train`; it appears here by itself."
NO_STEPS = "This run has no step yet. The first one appears here by itself."

STATUS = {
    "running": "running",
    "complete": "complete",
    "interrupted": "interrupted before its last step",
    "stopped": "stopped without finishing: its manifest says running, but no file has changed for over a minute",
    "unknown": "status unknown: its manifest cannot be read",
}


def plain(text: object) -> str:
    """Text for a Markdown element, with everything that Markdown could act on escaped."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|$:<>~&@])", r"\\\1", str(text))


def number(value: float | None) -> str:
    """At most four significant digits; a dash where there is nothing to show."""
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def percent(share: float | None) -> str:
    """A share with enough digits to tell 99.99 % from 100 %."""
    if share is None:
        return "–"
    text = f"{100 * share:.2f}"
    if share < 1 and text == "100.00":
        return ">99.99 %"
    return "<0.01 %" if share > 0 and text == "0.00" else f"{text} %"


def ago(seconds: float) -> str:
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"


def table(header: list[str], rows: list[list[str]], meanings: Mapping[str, str] | None = None) -> str:
    """An HTML table in which every cell is literal text. `meanings` explains words of the header and of the first
    column, to the mouse and to the keyboard."""
    known = meanings or {}
    head = "".join(f"<th>{_explained(cell, known)}</th>" for cell in header)
    cells = [[_explained(cell, known) if i == 0 else html.escape(cell) for i, cell in enumerate(row)] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    return (
        f"{TABLE_STYLE}<div class='rl-table'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def swatches(colours: dict[str, str]) -> str:
    """A legend: every name, as literal text, behind a spot of its colour."""
    spots = "".join(
        f"<span style='margin-right:1.1em;white-space:nowrap'><span style='color:{colour}'>●</span> "
        f"{html.escape(name)}</span>"
        for name, colour in colours.items()
    )
    return f"<div style='font-size:0.85rem;line-height:1.7;display:flex;flex-wrap:wrap'>{spots}</div>"


def _explained(cell: str, meanings: Mapping[str, str]) -> str:
    text = html.escape(cell)
    return f'<abbr title="{html.escape(meanings[cell])}" tabindex="0">{text}</abbr>' if cell in meanings else text


TABLE_STYLE = """<style>
.rl-table { overflow-x: auto }
.rl-table table { border-collapse: collapse; width: 100%; font-size: 0.875rem }
.rl-table th { text-align: left; font-weight: 600; padding: 4px 12px 4px 0; border-bottom: 1px solid #8b8f9766 }
.rl-table td { vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid #8b8f9733;
  white-space: pre-wrap; overflow-wrap: anywhere }
.rl-table abbr { display: inline-block; cursor: help; text-underline-offset: 3px }
.rl-table abbr:focus::after { content: " " attr(title); font-weight: 400; opacity: 0.8; white-space: normal }
</style>"""
