"""Parts of a response: the version of the weights that sampled each token, and turns between the answers of tools."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists, require_aligned, require_readable
from rlcorr.foreign.real_tokens import real_lengths
from rlcorr.foreign.values import one_per_row, varies, whole_numbers

FALLS = {
    "policy_versions": "a response is only continued with newer weights, so a version must not be lower than the one "
    "before it",
    "turn_ids": "a turn ends before the next one begins, so two turns must not overlap",
}
"""Column whose numbers must not fall within a response → why."""
TOOL = "Tokens that a tool wrote belong to no turn: leave them out with response_mask."


def versions(columns: Columns, rollout: Lists, real: Tensor) -> tuple[Tensor, bool]:
    """Return one version per real token, (N,), and True if a row has several; otherwise one per row, (B,), and False.

    SGLang's weight_version is a text; a text of digits is such a number. Raises `UsageError` for anything but whole
    numbers, because the order of other texts is unknown, and if the versions of a response fall: a response is only
    ever continued with newer weights.
    """
    column = _numbers_of_texts(require_readable(columns["policy_versions"]))
    if not isinstance(column, Lists) or not varies(column):
        return whole_numbers("policy_versions", one_per_row("policy_versions", column)), False
    return _rising("policy_versions", columns, rollout, real), True


def _numbers_of_texts(column: Lists | Tensor | list[str]) -> Lists | Tensor:
    if not isinstance(column, list):
        return column
    other = next((text for text in column if not (text.isascii() and text.isdecimal() and len(text) < 10)), None)
    if other is not None:
        raise UsageError(
            f"policy_versions has texts such as {other!r:.40}: which of two texts is the newer version is unknown. "
            "Write whole numbers that rise with each update of the weights."
        )
    return torch.tensor([int(text) for text in column])


def turns(columns: Columns, rollout: Lists, real: Tensor, paired: Tensor) -> Tensor | None:
    """Return the turn of each paired token, (N,): the file's, or the runs of real tokens between others.

    None if no response has more than one turn. Raises `UsageError` if the turns of a response fall or are negative.
    """
    if "turn_ids" in columns:
        numbers = _rising("turn_ids", columns, rollout, paired)
        if bool((numbers < 0).any()):
            row, lowest = int(rollout.rows()[paired][numbers < 0][0]), int(numbers.min())
            raise UsageError(f"row {row} (from 0): turn_ids has {lowest}; turns are numbered from 0. {TOOL}")
        return numbers
    before = torch.zeros_like(real)
    before[1:] = real[:-1]
    starts = real & ~(before & (rollout.positions() > 0))
    if int(starts.sum()) == int((real_lengths(rollout, real) > 0).sum()):
        return None
    count = starts.long().cumsum(0)
    first = torch.zeros(len(rollout.lengths), dtype=torch.int64).scatter_reduce_(
        0, rollout.rows(), count - starts.long(), "amin", include_self=False
    )
    return (count - first[rollout.rows()] - 1)[paired].int()


def _rising(name: str, columns: Columns, rollout: Lists, real: Tensor) -> Tensor:
    """Return the whole numbers of the real tokens. Raises `UsageError` if they fall within a response."""
    numbers, row = whole_numbers(name, require_aligned(name, columns, rollout).values)[real], rollout.rows()[real]
    falls = (numbers[1:] < numbers[:-1]) & (row[1:] == row[:-1])
    if bool(falls.any()):
        where = int(falls.nonzero()[0])
        got = f"{int(numbers[where])} to {int(numbers[where + 1])}"
        raise UsageError(
            f"row {int(row[where])} (from 0): {name} falls within the response, from {got}; {FALLS[name]}."
        )
    return numbers
