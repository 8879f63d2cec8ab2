"""Errors that the user can correct, explained in one sentence. The command line prints them without a traceback."""

import difflib
import importlib.util
from collections.abc import Iterable


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
