"""A value that does not fit is refused in one sentence, with the value as a person typed it."""

from rlcorr.errors import UsageError


def check(fine: bool, name: str, got: object, allowed: str) -> None:
    if not fine:
        raise UsageError(f"{name} must be {allowed}; got {got}.")
