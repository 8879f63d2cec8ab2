"""Checks of the keys, numbers and versions of other systems' configurations."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlcorr.errors import UsageError, unknown


def options(kind: str, given: Any, place: tuple[str, ...] = (), retired: Mapping[str, str] | None = None) -> Any:
    """Return the options of a mapping that was pasted; what is no mapping is returned as it is.

    Args:
        given: {name: value} of a YAML file, a TOML table, a command line or a Python call. A name may start with `--`
            (flags) or `+` (Hydra), have hyphens for underscores, and be dotted, which is a mapping in a mapping.
        place: the keys above the options in the system's own file. `given` may start at any of them or below them all.
        retired: {old name: sentence on its successor}, looked for at every depth.

    Raises `UsageError` for a retired name, a name given twice, and a key beside the place, which nobody would read.

    >>> options("a loss", {"--trainer.loss.kl-tau": 0.0}, ("trainer", "loss"))
    {'kl_tau': 0.0}
    """
    if not isinstance(given, Mapping):
        return given
    held = _nested(given)
    for name in _names(held):
        if retired and name in retired:
            raise UsageError(f"{name} is not read: {retired[name]}.")
    start = next((depth for depth, name in enumerate(place) if name in held), len(place))
    for name in place[start:]:
        beside = [key for key in held if key != name]
        if beside:
            raise UsageError(
                f"{kind} is read from {'.'.join(place)}, and {beside[0]!r} beside {name} is not: leave it out, or move "
                f"it there."
            )
        held = {} if held.get(name) is None else held[name]
        if not isinstance(held, Mapping):
            return held
    return held


def _nested(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy with plain names: {"--a.b-c": 1} is {"a": {"b_c": 1}}."""
    nested: dict[str, Any] = {}
    for key, value in given.items():
        *places, name = str(key).lstrip("-+").replace("-", "_").split(".")
        holder = nested
        for place in places:
            holder = holder.setdefault(place, {})
            if not isinstance(holder, dict):
                raise UsageError(f"{place} has a value and options below it: {str(key)!r}; give one of them.")
        if name in holder:
            raise UsageError(f"{str(key)!r} is given twice, in two spellings; give it once.")
        holder[name] = _nested(value) if isinstance(value, Mapping) else value
    return nested


def _names(given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        yield name
        if isinstance(value, Mapping):
            yield from _names(value)


def of_other_versions(system: str, version: str, names: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return {name: sentence} of the names that other versions of the system have and this one lacks.

    >>> of_other_versions("TRL", "1.16", {"1.16": ["clip_max"], "1.5": ["cap"]})
    {'cap': "it is of TRL 1.5: read it with version='1.5', or write the names of 1.16, clip_max"}
    """
    current = tuple(names[version])
    return {
        name: f"it is of {system} {other}: read it with version={other!r}, or write the names of {version}, "
        f"{', '.join(current)}"
        for other in names
        for name in names[other]
        if name not in current
    }


def refuse_ignored(
    system: str, held: Mapping[str, Any], defaults: Mapping[str, Any], names: Iterable[str], why: str
) -> None:
    """Raise `UsageError` if one of these options, which the system ignores here, has another value than its default.

    A threshold without its switch is a mistake that the system itself does not report. `why` ends the sentence.

    >>> refuse_ignored("slime", {"tis_clip": 5.0}, {"tis_clip": 2.0}, ["tis_clip"], "without --use-tis")
    Traceback (most recent call last):
    rlcorr.errors.UsageError: slime ignores tis_clip=5.0 without --use-tis: change that, or leave tis_clip out.
    """
    for name in names:
        value = tuple(held[name]) if isinstance(held[name], list) else held[name]
        if value != defaults[name]:
            raise UsageError(f"{system} ignores {name}={value!r} {why}: change that, or leave {name} out.")


def known_keys(kind: str, mapping: Any, allowed: Iterable[str]) -> None:
    """Raise `UsageError` unless this is a mapping with no other keys than these."""
    if not isinstance(mapping, Mapping):
        raise UsageError(f"{kind} must be a mapping of names to values; got {mapping!r}.")
    allowed = tuple(allowed)
    for key in mapping:
        if key not in allowed:
            raise UsageError(
                f"{unknown(f'key of {kind}', str(key), allowed)} What is not about the correction is not read: "
                f"leave it out."
            )


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
