"""Checks of the keys, numbers and versions of other systems' configurations."""

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


def settings(kind: str, given: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these fields: of a mapping, what it leaves out having its default, or of the system's own object.

    A mapping must hold nothing else; an object may. Raises `UsageError` for unknown keys, and for an object without
    one of the fields.
    """
    if isinstance(given, Mapping):
        known_keys(kind, given, defaults)
        return dict(defaults) | dict(given)
    try:
        return {name: getattr(given, name) for name in defaults}
    except AttributeError as missing:
        fields = ", ".join(defaults)
        raise UsageError(f"{kind} must be a mapping, or an object with {fields}; got {given!r}.") from missing


def version_of(system: str, version: str, allowed: Iterable[str]) -> str:
    """The version. Raises `UsageError` for one that nobody here has read."""
    if version not in (allowed := tuple(allowed)):
        raise unknown(f"version of {system}", str(version), allowed)
    return version


def choice(name: str, value: Any, allowed: Iterable[str]) -> Any:
    """The value. Raises `UsageError` for another one than these."""
    if value not in (allowed := tuple(allowed)):
        raise unknown(name, str(value), allowed)
    return value


def switch(name: str, value: Any) -> bool:
    """True or False. Raises `UsageError` for anything else."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False; got {value!r}.")
    return value


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


def optional(name: str, value: Any) -> float | None:
    """A number, or None."""
    return None if value is None else number(name, value)


def pair(name: str, value: Any) -> tuple[float, float]:
    """Two numbers, in the order in which they are written. Raises `UsageError` for anything else."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise UsageError(f"{name} must be two numbers; got {value!r}.")
    return number(name, value[0]), number(name, value[1])
