"""Checks of the keys and numbers of other systems' configurations."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rlcorr.errors import UsageError, unknown


def known_keys(kind: str, mapping: Any, allowed: Iterable[str]) -> None:
    """Raise `UsageError` unless this is a mapping with no other keys than these."""
    if not isinstance(mapping, Mapping):
        raise UsageError(f"{kind} must be a mapping of names to values; got {mapping!r}.")
    allowed = tuple(allowed)
    for key in mapping:
        if key not in allowed:
            raise unknown(f"key of {kind}", str(key), allowed)


def number(name: str, value: Any) -> float:
    """The value as a float; "inf" is one too, because JSON has no other way to say it.

    Raises `UsageError` for what is no number, other text that looks like one included.
    """
    if (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, str) and _looks_like_a_number(value):
        dotted = value if "." in value else value.lower().replace("e", ".0e")
        raise UsageError(
            f"{name} is the text {value!r}: write the number {dotted}, without quotes (YAML reads an exponent without "
            f"a dot as text)."
        )
    raise UsageError(f"{name} must be a number; got {value!r}.")


def _looks_like_a_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
