"""What the Tokens view says."""

import math

from rlcorr.analysis.digits import digits
from rlcorr.analysis.token_story import RowOrder, TokenStory
from rlcorr.records.token_texts import END, NEW_LINE, NO_TEXT, TextKind
from rlcorr.teaching.glossary import define
from text.formatting import number, percent, plain

EXPLAIN = (
    "Every coloured piece of text is one token that the engine sampled. Its colour says how the trainer sees it: warm "
    "where the trainer gives it a higher probability than the engine did, cool where it gives a lower one. Open a "
    "token to see both probabilities, its weight, what each rule compared, and the formulas with these numbers in them."
)
TEXTS: dict[TextKind, str] = {
    "texts": f"{END} is the end token, {NEW_LINE} a line break.",
    "characters": f"One token is one character here: all lengths of this step agree. {END} is the end token.",
    "ids": "Tokens are shown by their ids: this run holds no texts of tokens, and here a token is not one character.",
    "unknown": f"Every token is shown as {NO_TEXT}: this step holds neither their texts nor their ids.",
}
ANSWER = (
    "One token in a hundred carries {share} of the mismatch (k3). The largest gap: {token}, token {place} of response "
    "{row}, to which the engine gave {q} and the trainer {p}."
)
ALIKE = "None: both programs give every token the same probability."
DIGITS = "A result has the digits, at most four, that the numbers before it give back."
BYPASS = "In bypass mode π_θ stands in for π_old. Before the first update the two are the same."
NO_TOKENS = "The responses of this step have no tokens."
KEYS = "Click a token, or move with the arrow keys and open with Enter."

ORDERS: dict[RowOrder, str] = {
    "off": "furthest mean ratio first",
    "recorded": "as recorded",
    "lowest": "lowest reward first",
    "highest": "highest reward first",
    "rejected": "most rejected first",
}

FATES = ("", "", "weight below its bound", "weight above its bound", "rejected")
"""What is said of a token, in the order of `plots.FATES`."""

LEGEND = {
    "ratio": "Ratio π_old/π_rollout",
    "rejected": "rejected",
    "bounded": "weight beyond a bound",
    "grid": f"Responses, token by token. {KEYS}",
}

_LONGEST = 60


def prompt(text: str) -> str:
    """The end of a prompt, which is what the response goes on from."""
    return visible(text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}")


def heading(row: int, reward: float | None, mean_ratio: float, rejected: int, tokens: int) -> str:
    """The line over a response."""
    parts = [f"response {row}", f"mean ratio {number(mean_ratio)}"]
    parts += [] if reward is None or math.isnan(reward) else [f"reward {number(reward)}"]
    parts += [f"{rejected} of {tokens} rejected"] if rejected else []
    return " · ".join(parts)


def visible(text: str) -> str:
    """Text in which line breaks and other characters without a shape can be seen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def token(text: str) -> str:
    """The text of one token, in which spaces can be seen too."""
    return visible(text).replace(" ", "␣")


def title(story: TokenStory, text: str) -> str:
    """A heading in Markdown."""
    return f"**Token {story.column} of response {story.row}: “{plain(token(text))}”**"


def answer(share: float, text: str, row: int, column: int, q: float, p: float) -> str:
    """Markdown: how few tokens carry the mismatch, and which one most of all."""
    if not share:
        return ALIKE
    written = f"“{plain(token(text))}”"
    return ANSWER.format(share=percent(share), token=written, place=column, row=row, q=number(q), p=number(p))


NUMBERS = ["", "logarithm", "value"]
MEANINGS = {
    "π_rollout, the engine": define("π_rollout"),
    "π_old, the trainer": define("π_old"),
    "r = π_old/π_rollout": define("ratio"),
    "w before bounds": define("importance weight"),
    "w after bounds": f"{define('truncation')} {define('masking')}",
    "w normalised": "The weight, divided by the mean of the weights over what is kept.",
    "rejected by": define("rejection"),
    "A, the advantage": define("advantage"),
    "c, in the gradient Σ c ∇ log π": "What this token's ∇ log π is multiplied by in the gradient.",
}


def numbers(story: TokenStory, weighted: bool) -> list[list[str]]:
    """Rows under `NUMBERS`: the policies, their ratio, and what became of the token; `weighted`: weights are asked
    for."""
    rows = [
        ["π_rollout, the engine", digits(story.rollout_log_prob), digits(story.rollout_prob)],
        ["π_old, the trainer", digits(story.old_log_prob), digits(story.old_prob)],
        ["r = π_old/π_rollout", digits(story.log_ratio), digits(story.ratio)],
    ]
    if weighted:
        rows.append(["w before bounds", digits(story.log_weight), digits(story.raw_weight)])
        rows.append(["w after bounds", "", digits(story.bounded_weight)])
    if story.norm_factor is not None:
        rows.append(["w normalised", "", digits(story.weight)])
    rows.append(["rejected by", "", story.rejected_by or "no rule"])
    if story.advantage is not None:
        rows.append(["A, the advantage", "", digits(story.advantage)])
    if story.contribution is not None:
        rows.append(["c, in the gradient Σ c ∇ log π", "", digits(story.contribution)])
    return rows
