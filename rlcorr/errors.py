"""Mistakes a person can mend, told in one sentence. The command line prints them without a traceback."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """A wrong name, value or file: the message says what was got and what is allowed."""


def unknown(kind: str, got: str, allowed: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: what was got, the nearest, and what exists.

    >>> print(unknown("preset", "decoupled_token_si", ["decoupled_seq_is", "decoupled_token_is"]))
    unknown preset 'decoupled_token_si'. Did you mean 'decoupled_token_is'? Known: decoupled_seq_is, decoupled_token_is.
    """
    names = sorted(allowed)
    nearest = difflib.get_close_matches(got, names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UsageError(f"unknown {kind} {got!r}.{hint} Known: {', '.join(names) or 'none'}.")


def first_line(error: Exception) -> str:
    """The first line of what another package's error says, at most 200 characters; its class where it says nothing.

    >>> first_line(ValueError("no such column\\n(at line 3)")), first_line(KeyError())
    ('no such column', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
