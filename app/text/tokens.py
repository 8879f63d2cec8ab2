"""Sentences of the Tokens view."""

import math

from rlcorr.analysis.token_story import RowOrder, TokenStory, digits
from rlcorr.records.token_texts import END, NEW_LINE, NO_TEXT, TextKind
from rlcorr.teaching.glossary import define
from text.formatting import number, percent, plain

EXPLAIN = (
    "Every coloured piece of text is one token that the sampler wrote. Orange: the trainer gives it a "
    "higher probability than the sampler did. Blue: a lower one. Open a token to see both probabilities, its weight, "
    "what each rule compares, and the formulas with its numbers."
)
TEXTS: dict[TextKind, str] = {
    "texts": f"{END} is the end token, {NEW_LINE} a line break.",
    "characters": f"One token is one character here, because all lengths of this step agree. {END} is the end token.",
    "ids": "Tokens are shown by their ids, because this run has no texts of tokens, and a token is not one character.",
    "unknown": f"Every token is shown as {NO_TEXT}, because this step has neither texts nor ids of tokens.",
}
ANSWER = (
    "1 % of the tokens make {share} of the mismatch (k3). The largest gap is {token}, token {column} of response "
    "{row}. Its probability is {q} in the sampler and {p} in the trainer."
)
NO_GAP = "No token does: both programs give every token the same probability."
BYPASS = "In bypass mode π_θ takes the place of π_old. Before the first update the two are the same."
NO_TOKENS = "The responses of this step have no tokens."
CLOSE = "Close"
KEYS = "Click a token. Or use the arrow keys, and open a token with Enter."

ORDERS: dict[RowOrder, str] = {
    "off": "mean ratio furthest from 1 first",
    "recorded": "as recorded",
    "lowest": "lowest reward first",
    "highest": "highest reward first",
    "rejected": "most rejected first",
}

FATES = ("", "", "weight below its threshold", "weight above its threshold", "rejected")
"""What the text says about a token, in the order of `rlcorr.figures.fates.FATES`."""

LEGEND = {
    "ratio": "Ratio π_old/π_rollout",
    "rejected": "rejected",
    "bounded": "weight clipped",
    "grid": f"Responses, token by token. {KEYS}",
}

_LONGEST = 60


def prompt(text: str) -> str:
    """Return the end of a prompt, with line breaks and other characters made visible."""
    return visible(text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}")


def heading(row: int, reward: float | None, mean_ratio: float, rejected: int, tokens: int) -> str:
    """Return the line above a response."""
    parts = [f"response {row}", f"mean ratio {number(mean_ratio)}"]
    parts += [] if reward is None or math.isnan(reward) else [f"reward {number(reward)}"]
    parts += [f"{rejected} of {tokens} rejected"] if rejected else []
    return " · ".join(parts)


def piece(start: int, stop: int, tokens: int) -> str:
    """Return what the line above says about a response of which only some tokens are shown."""
    return "" if stop - start == tokens else f" · tokens {start:,} to {stop - 1:,} of {tokens:,}"


def visible(text: str) -> str:
    """Return the text with line breaks and other invisible characters written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def token(text: str) -> str:
    """Return the text of one token with spaces made visible, too."""
    return visible(text).replace(" ", "␣")


def title(story: TokenStory, text: str) -> str:
    """Return a heading in Markdown."""
    return f"**Token {story.column} of response {story.row}: “{plain(token(text))}”**"


def answer(share: float, text: str, row: int, column: int, q: float, p: float) -> str:
    """Return, in Markdown, how much of the mismatch 1 % of the tokens make, and which token has the largest gap."""
    if not share:
        return NO_GAP
    written = f"“{plain(token(text))}”"
    return ANSWER.format(
        share=percent(share), token=written, column=column, row=row, q=_probability(q), p=_probability(p)
    )


def _probability(p: float) -> str:
    """Format a probability so that no line breaks inside it."""
    return number(p).replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")


NUMBERS = ["", "logarithm", "value"]
MEANINGS = {
    "π_rollout, the sampler": define("π_rollout"),
    "π_old, the trainer": define("π_old"),
    "r = π_old/π_rollout": define("ratio"),
    "w before thresholds": define("importance weight"),
    "w after thresholds": f"{define('truncation')} {define('masking')}",
    "w normalised": "The weight, divided by the mean weight of the kept tokens.",
    "rejected by": define("rejection"),
    "A, the advantage": define("advantage"),
    "c, in the gradient Σ c ∇ log π": "The factor of this token's ∇ log π in the gradient.",
}


def numbers(story: TokenStory, weighted: bool) -> list[list[str]]:
    """Return the rows under `NUMBERS`: the policies, their ratio, and the outcome of the token.

    `weighted`: whether the configuration has weights.
    """
    rows = [
        ["π_rollout, the sampler", digits(story.rollout_log_prob), digits(math.exp(story.rollout_log_prob))],
        ["π_old, the trainer", digits(story.old_log_prob), digits(math.exp(story.old_log_prob))],
        ["r = π_old/π_rollout", digits(story.log_ratio), digits(story.ratio)],
    ]
    if weighted:
        rows.append(["w before thresholds", digits(story.log_weight), digits(story.raw_weight)])
        rows.append(["w after thresholds", "", digits(story.bounded_weight)])
    if story.norm_factor is not None:
        rows.append(["w normalised", "", digits(story.weight)])
    rows.append(["rejected by", "", story.rejected_by or "no rule"])
    if story.advantage is not None:
        rows.append(["A, the advantage", "", digits(story.advantage)])
    if story.contribution is not None:
        rows.append(["c, in the gradient Σ c ∇ log π", "", digits(story.contribution)])
    return rows


NO_TOKEN = (
    "token={raw} is not a token: it must be ROW.COLUMN, such as 3.0. Showing the one whose ratio is furthest from 1."
)
NO_SUCH_TOKEN = (
    "token={raw} is not in this step: it has {responses} responses{of_row}, all counted from 0. "
    "Showing the one whose ratio is furthest from 1."
)
OF_ROW = "; response {row} has {tokens} tokens"
