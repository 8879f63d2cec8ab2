"""The text with which a token of a recorded response is shown."""

from typing import Literal

from rlcorr.records.step_files import StepRecord

END = "⏎"
"""Shown for an end token, which has no text."""

NO_TEXT = "·"
"""Shown for a token without recorded text and id; unknown ids are negative."""

NEW_LINE = "↵"
"""Shown for a line break within a token."""

TextKind = Literal["texts", "characters", "ids", "unknown"]


def text_kind(record: StepRecord) -> TextKind:
    """Return how the tokens of a record can be shown.

    texts        the text of each token was recorded
    characters   every response has as many characters as tokens (apart from an end token), and no id means two of them
    ids          none of these, but ids were recorded
    unknown      neither texts of that length nor ids
    """
    if record.tokens is not None:
        return "texts"
    texts, ids = record.responses, record.batch.response_ids
    lengths = record.batch.response_mask.sum(-1).tolist()
    agree = any(texts) and all(n - len(text) in (0, 1) for text, n in zip(texts, lengths, strict=True))
    if ids is None or not bool((ids[record.batch.response_mask] >= 0).any()):
        return "characters" if agree else "unknown"
    if not agree:
        return "ids"
    rows = zip(ids.tolist(), texts, strict=True)
    pairs = {pair for row, text in rows for pair in zip(row[: len(text)], text, strict=True)}
    return "characters" if len({token for token, _ in pairs}) == len(pairs) else "ids"


def pieces(record: StepRecord) -> list[list[str]]:
    """Return the text with which every response token is shown.

    It is its text or character, `END`, its id as "#123", or `NO_TEXT`, depending on `text_kind`.
    """
    if record.tokens is not None:
        return [[text.replace("\n", NEW_LINE) for text in row] for row in record.tokens]
    lengths = record.batch.response_mask.sum(-1).tolist()
    kind, ids = text_kind(record), record.batch.response_ids
    if kind == "characters":
        return [[*text, *[END] * (n - len(text))] for text, n in zip(record.responses, lengths, strict=True)]
    if kind == "unknown" or ids is None:
        return [[NO_TEXT] * n for n in lengths]
    return [[f"#{token}" for token in row[:n]] for row, n in zip(ids.tolist(), lengths, strict=True)]
