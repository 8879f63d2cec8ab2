"""The glossary, `glossary.toml`: the meaning of each technical term. `measuring.metrics` alone describes metrics."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from rlcorr.errors import unknown
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe


@dataclass(frozen=True)
class Term:
    """An entry of the glossary. It has either a meaning or a metric."""

    symbol: str = ""
    meaning: str = ""
    metric: str = ""
    """The metric whose description is the meaning."""
    also: str = ""
    """Other names."""


_TABLE = Path(__file__).with_name("glossary.toml")
GLOSSARY = {word: Term(**entry) for word, entry in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()}
"""Word → term, in the order in which a reader needs them."""


def define(word: str) -> str:
    """Return the meaning of a word. Raises `UsageError`, with the nearest word, if the glossary does not have it."""
    if word not in GLOSSARY:
        raise unknown("word", word, GLOSSARY)
    term = GLOSSARY[word]
    return describe(term.metric) if term.metric else term.meaning


def find(text: str) -> list[str]:
    """Find the words whose name, symbol, meaning or other names contain this text, ignoring case.

    An empty text matches all words.
    """
    wanted = text.casefold().strip()
    parts = {word: (word, term.symbol, define(word), term.also) for word, term in GLOSSARY.items()}
    return [word for word, texts in parts.items() if wanted in "\n".join(texts).casefold()]


def find_metrics(text: str) -> dict[str, str]:
    """Find the metrics whose name or description contains this text, ignoring case: name → description."""
    wanted = text.casefold().strip()
    return {key: meaning for key in METRICS if wanted in f"{key}\n{(meaning := describe(key))}".casefold()}
