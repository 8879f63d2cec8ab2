"""Errors that the user can correct, explained in one sentence, and checks of single values that raise them.

The command line prints them without a traceback. Each message contains what was got and what is allowed.
"""

import difflib
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, get_args


class UsageError(Exception):
    """A wrong name, value or file. The message contains what was got and what is allowed."""


def unknown(kind: str, got: object, allowed: Iterable[str]) -> UsageError:
    """Return the error for a name that does not exist. Its message contains this name, the nearest one, and all.

    >>> print(unknown("preset", "decoupled_token_si", ["decoupled_seq_is", "decoupled_token_is"]))
    unknown preset 'decoupled_token_si'. Did you mean 'decoupled_token_is'? Known: decoupled_seq_is, decoupled_token_is.
    """
    names = sorted(allowed)
    nearest = difflib.get_close_matches(str(got), names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UsageError(f"unknown {kind} {got!r:.200}.{hint} Known: {', '.join(names) or 'none'}.")


class MissingExtra(UsageError, ImportError):
    """A part of rlcorr whose packages are not installed."""


def require_extra(extra: str, *packages: str) -> None:
    """Raise `MissingExtra` with the command that installs them, if one of these packages is missing."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingExtra(f'this part of rlcorr needs {", ".join(missing)}: pip install "rlcorr[{extra}]".')


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters, or its class name if the message is empty.

    For errors that other packages raise.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


# --- checks of single values ---


def member(name: str, value: Any, allowed: Any) -> None:
    """Raise `UsageError` unless the value is one of a `Literal`."""
    if value not in get_args(allowed):
        raise unknown(name, str(value), get_args(allowed))


def check(fine: bool, name: str, value: Any, allowed: str) -> None:
    """Raise `UsageError` unless `fine`; `allowed` describes in words what is allowed.

    >>> check(0 >= 1, "steps", 0, "≥ 1")
    Traceback (most recent call last):
    rlcorr.errors.UsageError: steps must be ≥ 1; got 0.
    """
    if not fine:
        raise UsageError(f"{name} must be {allowed}; got {value!r}.")


def booleans(config: Any, *names: str) -> None:
    """Raise `UsageError` unless these attributes are True or False; 0, 1 and "no" are wrong."""
    for name in names:
        check(isinstance(getattr(config, name), bool), name, getattr(config, name), "True or False")


def is_number(x: Any) -> bool:
    """Check whether x is an int or a float. True and False are not numbers."""
    return isinstance(x, int | float) and not isinstance(x, bool)


def number(config: Any, name: str, allowed: str, test: Callable[[float], bool]) -> None:
    """Raise `UsageError` unless the attribute is a number that passes the test."""
    value = getattr(config, name)
    check(is_number(value) and test(value), name, value, f"a number {allowed}")


def positive(name: str, lower: float | None, upper: float) -> None:
    """Raise `UsageError` unless 0 < lower ≤ upper, for bounds on a positive quantity. None is no lower bound."""
    for side, bound in (("lower", lower), ("upper", upper)):
        if bound is not None or side == "upper":
            _bound(name, side, bound, "> 0", lambda x: x > 0)
    if lower is not None and lower > upper:
        raise UsageError(f"{name}: lower bound {lower} is above upper bound {upper}.")


def two_sided(name: str, lower: float | None, upper: float) -> None:
    """Raise `UsageError` unless lower < 0 < upper, for bounds on a signed divergence. None is no lower bound."""
    if lower is not None:
        _bound(name, "lower", lower, "< 0", lambda x: x < 0)
    _bound(name, "upper", upper, "> 0", lambda x: x > 0)


def _bound(name: str, side: str, bound: Any, allowed: str, test: Callable[[float], bool]) -> None:
    if not is_number(bound):
        raise UsageError(f"{name}: the {side} bound must be a number; got {bound!r}.")
    if not test(bound):
        raise UsageError(f"{name}: the {side} bound must be {allowed}; got {bound}.")
