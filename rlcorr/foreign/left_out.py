"""Optional columns that cannot be used are left out, and a sentence says why."""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from rlcorr.errors import UsageError

LeftOut = dict[str, str]
"""Column → why it is left out."""

T = TypeVar("T")


def read_optional(name: str, read: Callable[[], T], left_out: LeftOut) -> T | None:
    """Return the result of `read`. If it raises `UsageError`, return None and add the message to `left_out`."""
    try:
        return read()
    except UsageError as error:
        left_out[name] = str(error)
        return None


def notes(left_out: LeftOut, rewards: Tensor | None) -> tuple[str, ...]:
    """Return a sentence per column that is left out, and one if some rewards are unknown.

    A null reward becomes NaN in its row, and the other rows keep their rewards. The mean reward is then NaN and is not
    recorded: a mean over the known rewards alone would mislead.
    """
    sentences = [f"{name} is left out: {why}" for name, why in left_out.items()]
    unknown = 0 if rewards is None else int(rewards.isnan().sum())
    if rewards is not None and 0 < unknown < len(rewards):
        sentences.append(
            f"rewards is null or NaN in {unknown} of {len(rewards)} rows; these rewards are unknown, so no mean "
            "reward is recorded."
        )
    return tuple(sentences)
