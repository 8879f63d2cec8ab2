"""Columns that are not needed and cannot be used: they are left out, and a sentence says so."""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from rlcorr.errors import UsageError

LeftOut = dict[str, str]
"""Column → why it is left out."""

T = TypeVar("T")


def optional(name: str, read: Callable[[], T], left_out: LeftOut) -> T | None:
    """Return what `read` returns. Where it raises `UsageError`, return None and note why."""
    try:
        return read()
    except UsageError as error:
        left_out[name] = str(error)
        return None


def notes(left_out: LeftOut, rewards: Tensor | None) -> tuple[str, ...]:
    """Return a sentence per column that is left out, and one if some rewards are unknown.

    A null reward stays in its place as NaN: every other row keeps its reward, and a mean over all of them is NaN, which
    is written nowhere, and not the mean of those that are there.
    """
    said = [f"{name} is left out: {why}" for name, why in left_out.items()]
    unknown = 0 if rewards is None else int(rewards.isnan().sum())
    if rewards is not None and 0 < unknown < len(rewards):
        said.append(
            f"rewards is null or NaN in {unknown} of {len(rewards)} rows: these are unknown, and no mean reward is "
            "recorded."
        )
    return tuple(said)
