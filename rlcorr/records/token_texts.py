"""What a token of a recorded response says."""

from typing import Literal

from rlcorr.records.step_files import StepRecord

END = "⏎"
"""What an end token, which has no text, is shown as."""


NO_TEXT = "·"
"""What a token is shown as of which neither text nor id was recorded; unknown ids are negative."""


NEW_LINE = "↵"
"""Stands for a line break within a token."""

TextKind = Literal["texts", "characters", "ids", "unknown"]


def text_kind(record: StepRecord) -> TextKind:
    """Return how the tokens of a record can be shown.

    texts        the text of each token was recorded
    characters   every response has as many characters as tokens, an end token aside, and no id stands for two of them
    ids          otherwise, where ids were recorded
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
    meant = {pair for row, text in rows for pair in zip(row[: len(text)], text, strict=True)}
    return "characters" if len({token for token, _ in meant}) == len(meant) else "ids"


def pieces(record: StepRecord) -> list[list[str]]:
    """Return what every response token is shown as: its text or its character, or `END`; its id as "#123"; or `NO_TEXT`
    (`text_kind`)."""
    if record.tokens is not None:
        return [[text.replace("\n", NEW_LINE) for text in row] for row in record.tokens]
    lengths = record.batch.response_mask.sum(-1).tolist()
    kind, ids = text_kind(record), record.batch.response_ids
    if kind == "characters":
        return [[*text, *[END] * (n - len(text))] for text, n in zip(record.responses, lengths, strict=True)]
    if kind == "unknown" or ids is None:
        return [[NO_TEXT] * n for n in lengths]
    return [[f"#{token}" for token in row[:n]] for row, n in zip(ids.tolist(), lengths, strict=True)]
