"""Checks of the keys, numbers and versions of other systems' configurations."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlcorr.errors import UsageError, unknown


def options(kind: str, source: Any, parents: tuple[str, ...] = (), retired: Mapping[str, str] | None = None) -> Any:
    """Return the options of a pasted mapping with plain names. Anything that is not a mapping is returned unchanged.

    Args:
        source: {name: value} of a YAML file, a TOML table, a command line or a Python call. A name may start with `--`
            (flags) or `+` (Hydra) and have hyphens for underscores. A dotted name means a mapping in a mapping.
        parents: the keys above the options in the system's own file. `source` may start at any of them, or below all.
        retired: {old name: sentence about its successor}. It is searched at every depth.

    Raises:
        UsageError: for a retired name, for a name given twice, and for a key next to a parent, which would be ignored.

    >>> options("a loss", {"--trainer.loss.kl-tau": 0.0}, ("trainer", "loss"))
    {'kl_tau': 0.0}
    """
    if not isinstance(source, Mapping):
        return source
    inner = _nested(source)
    for name in _names(inner):
        if retired and name in retired:
            raise UsageError(f"{name} is not read: {retired[name]}.")
    start = next((depth for depth, name in enumerate(parents) if name in inner), len(parents))
    for name in parents[start:]:
        neighbours = [key for key in inner if key != name]
        if neighbours:
            raise UsageError(
                f"{kind} is read from {'.'.join(parents)}, and {neighbours[0]!r} next to {name} is not: leave it out, "
                f"or move it there."
            )
        inner = {} if inner.get(name) is None else inner[name]
        if not isinstance(inner, Mapping):
            return inner
    return inner


def _nested(source: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy with plain names: {"--a.b-c": 1} is {"a": {"b_c": 1}}."""
    nested: dict[str, Any] = {}
    for key, value in source.items():
        *parents, name = str(key).lstrip("-+").replace("-", "_").split(".")
        holder = nested
        for parent in parents:
            holder = holder.setdefault(parent, {})
            if not isinstance(holder, dict):
                raise UsageError(f"{parent} has a value and options below it: {str(key)!r}; give one of them.")
        if name in holder:
            raise UsageError(f"{str(key)!r} is given twice, in two spellings; give it once.")
        holder[name] = _nested(value) if isinstance(value, Mapping) else value
    return nested


def _names(source: Mapping[str, Any]) -> Iterator[str]:
    for name, value in source.items():
        yield name
        if isinstance(value, Mapping):
            yield from _names(value)


def refuse_ignored(
    system: str, values: Mapping[str, Any], defaults: Mapping[str, Any], names: Iterable[str], why: str
) -> None:
    """Raise `UsageError` if an option that the system ignores here has another value than its default.

    A threshold without its switch is a mistake that the system itself does not report. `why` is a part of the message:
    the condition under which these options are ignored.

    >>> refuse_ignored("slime", {"tis_clip": 5.0}, {"tis_clip": 2.0}, ["tis_clip"], "without --use-tis")
    Traceback (most recent call last):
    rlcorr.errors.UsageError: slime ignores tis_clip=5.0 without --use-tis: change that, or leave tis_clip out.
    """
    for name in names:
        value = tuple(values[name]) if isinstance(values[name], list) else values[name]
        if value != defaults[name]:
            raise UsageError(f"{system} ignores {name}={value!r} {why}: change that, or leave {name} out.")


def known_keys(kind: str, mapping: Any, allowed: Iterable[str]) -> None:
    """Raise `UsageError` unless this is a mapping whose keys are all allowed."""
    if not isinstance(mapping, Mapping):
        raise UsageError(f"{kind} must be a mapping of names to values; got {mapping!r}.")
    allowed = tuple(allowed)
    for key in mapping:
        if key not in allowed:
            raise UsageError(
                f"{unknown(f'key of {kind}', str(key), allowed)} What is not about the correction is not read: "
                f"leave it out."
            )


def settings(kind: str, source: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these fields from a mapping, or from the system's own object.

    A mapping may lack fields, which then have their default, but it must not have other keys. An object may have other
    attributes, but it must have all fields. Raises `UsageError` otherwise.
    """
    if isinstance(source, Mapping):
        known_keys(kind, source, defaults)
        return dict(defaults) | dict(source)
    try:
        return {name: getattr(source, name) for name in defaults}
    except AttributeError as missing:
        fields = ", ".join(defaults)
        raise UsageError(f"{kind} must be a mapping, or an object with {fields}; got {source!r}.") from missing


def choice(name: str, value: Any, allowed: Iterable[str]) -> Any:
    """Return the value. Raises `UsageError` if it is not allowed."""
    if value not in (allowed := tuple(allowed)):
        raise unknown(name, str(value), allowed)
    return value


def switch(name: str, value: Any) -> bool:
    """Return True or False. Raises `UsageError` for anything else."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False; got {value!r}.")
    return value


def number(name: str, value: Any) -> float:
    """Return the value as a float. The text "inf" is allowed, because JSON has no number for it.

    Raises `UsageError` for anything else that is not a number, including other text that looks like one.
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
    """Return a number, or None. Raises `UsageError` as `number` does."""
    return None if value is None else number(name, value)
