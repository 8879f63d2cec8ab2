"""The keys of a pasted configuration, sorted by the table of a system's keys, and checks of their values."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from rlcorr.errors import UsageError, unknown
from rlcorr.systems.mapping.facts import FACTS


@dataclass(frozen=True)
class Keys:
    """The settings of a pasted mapping."""

    read: dict[str, Any]
    """Full key, as in the system's own file → value, of the keys in the table of the system."""
    others: dict[str, Any]
    """Full key → value, of all other keys."""


def sort_keys(system: str, source: Mapping[Any, Any]) -> Keys:
    """Sort the keys of a pasted mapping into those that are in the system's table and others.

    Args:
        system: a system with a table of keys.
        source: {name: value} of a YAML file, a command line or a Python call. A name may start with `--` (flags) or `+`
            (Hydra) and have hyphens for underscores. A dotted name means a mapping in a mapping. The names above the
            correction may be left out, from the top: a mapping begins where most of its keys are in the table.

    Raises:
        UsageError: for a name that is given twice.

    >>> sort_keys("verl", {"+algorithm.rollout_correction.rollout_is": "token", "trainer.lr": 1e-6}).others
    {'trainer.lr': 1e-06}
    """
    facts, leaves = FACTS[system], dict(_leaves(_nested(source)))
    block = facts.block.split(".") if facts.block else []
    starts = [".".join([*block[:depth], ""]) if depth else "" for depth in range(len(block) + 1)]
    starts.sort(key=lambda above: -sum(f"{above}{name}" in facts.keys for name in leaves))
    places = {name: [f"{above}{name}" for above in starts] for name in leaves}
    full = {next(filter(facts.keys.__contains__, where), where[0]): leaves[name] for name, where in places.items()}
    read = {name: value for name, value in full.items() if name in facts.keys and _counts(system, name, full)}
    empty = {name for name, value in full.items() if not value and f"{facts.block}.".startswith(f"{name}.")}
    return Keys(read, {name: value for name, value in full.items() if name not in read and name not in empty})


def _counts(system: str, name: str, full: Mapping[str, Any]) -> bool:
    condition = FACTS[system].keys[name].condition
    other, _, required = condition.partition("=")
    return not condition or (full.get(other) == required if required else bool(full.get(other)))


def read_keys(system: str, source: Any) -> dict[str, Any]:
    """Return {full key: value} of a pasted mapping, or of the system's own object, with nothing else in it.

    Raises `UsageError` for a retired key, with its successor, and for every other key that is not in the table.
    """
    facts = FACTS[system]
    if is_dataclass(source) and not isinstance(source, type):  # the system's own object, which may have other fields
        above = f"{facts.block}.".lstrip(".")
        values = {f"{above}{f.name}": getattr(source, f.name) for f in fields(source)}
        source = {name: x for name, x in values.items() if name in facts.keys and _counts(system, name, values)}
    if not isinstance(source, Mapping):
        raise UsageError(f"{_kind(system)} must be a mapping of names to values; got {source!r}.")
    keys = sort_keys(system, source)
    refuse_retired(system, keys.others)
    for name in keys.others:
        raise UsageError(f"{wrong_key(system, name)} What is not about the correction is not read: leave it out.")
    if keys.read.get(facts.block):
        raise UsageError(f"{_kind(system)} must be a mapping of names to values; got {keys.read[facts.block]!r}.")
    return keys.read


def refuse_retired(system: str, names: Iterable[str]) -> None:
    """Raise `UsageError` for a key that older versions of the system have, with what to write now."""
    for name in names:
        for part in name.split("."):
            if part in FACTS[system].retired:
                raise UsageError(f"{part} is not read: {FACTS[system].retired[part]}.")


def wrong_key(system: str, name: str) -> UsageError:
    """Return the error for a key that is not in the system's table. Its message has the nearest key."""
    return unknown(f"key of {_kind(system)}", name.rpartition(".")[2], last_names(system))


def last_names(system: str) -> set[str]:
    """Return the last names of the keys of a system."""
    return {name.rpartition(".")[2] for name in FACTS[system].keys}


def _kind(system: str) -> str:
    return f"{system}'s {FACTS[system].block.rpartition('.')[2] or FACTS[system].under}"


def below(values: Mapping[str, Any], parent: str) -> dict[str, Any]:
    """Return {last name: value} of the keys directly below a parent."""
    return {name.rpartition(".")[2]: value for name, value in values.items() if name.rpartition(".")[0] == parent}


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
        if isinstance(value, Mapping) and isinstance(holder.get(name), dict):
            holder[name] = _nested(value) | holder[name]
            continue
        if name in holder:
            raise UsageError(f"{str(key)!r} is given twice, in two spellings; give it once.")
        holder[name] = _nested(value) if isinstance(value, Mapping) else value
    return nested


def _leaves(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _leaves(value))
        else:
            yield name, value


def refuse_ignored(
    system: str, values: Mapping[str, Any], defaults: Mapping[str, Any], names: Iterable[str], why: str
) -> None:
    """Raise `UsageError` if an option that the system ignores here has another value than its default.

    A threshold without its switch is a mistake that the system itself does not report. `why` is a part of the message:
    the condition under which these options are ignored.
    """
    for name in names:
        if values[name] != defaults[name]:
            raise UsageError(f"{system} ignores {name}={values[name]!r} {why}: change that, or leave {name} out.")


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
    hint = ", a text: write a number without quotes, with a dot before its exponent" if isinstance(value, str) else ""
    raise UsageError(f"{name} must be a number; got {value!r}{hint}.")


def optional(name: str, value: Any) -> float | None:
    """Return a number, or None. Raises `UsageError` as `number` does."""
    return None if value is None else number(name, value)
