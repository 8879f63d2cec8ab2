"""Values that are refused, in one sentence each."""

from typing import Any, get_args

from rlcorr.errors import UsageError, unknown


def check_member(name: str, got: object, allowed: Any) -> None:
    if got not in get_args(allowed):
        raise unknown(name, str(got), get_args(allowed))


def check(fine: bool, name: str, got: object, allowed: str) -> None:
    if not fine:
        raise UsageError(f"{name} must be {allowed}; got {got}.")
