"""Which tokens and rewards of a stranger's file count: every column that may say so is used, or refused by name."""

import json
from collections.abc import Collection

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists
from rlcorr.systems.counted import LOSSES, MASKS, REFUSED, REWARDS, RL, may_count

UNPAIRED = "unpaired"
"""Column (B, T) of this program: true where the engine has no log-prob, and a ratio of 1 is meant."""


def refuse_unknown(names: Collection[str], understood: Collection[str]) -> None:
    """Raises `UsageError` where a column may say which tokens count, and is none of the `understood`."""
    for name in names:
        if name in REFUSED:
            raise UsageError(f"{name} is there: {REFUSED[name]}.")
        if name not in understood and name not in MASKS and may_count(name):
            raise UsageError(
                f"{name!r:.60} may say which tokens count, and what it means is not known here: multiply it into the "
                "response_mask, or leave it out."
            )


def with_counted(columns: Columns, theirs: Columns) -> Columns:
    """Our columns with the rewards and the tokens that count by `theirs`. Raises `UsageError`."""
    for name, replaced in REWARDS.items():
        if name in theirs:
            columns = columns | {replaced: theirs[name]}
    masks = {name: theirs[name] for name in MASKS if name in theirs}
    if isinstance(texts := theirs.get(LOSSES), list):
        masks[LOSSES] = _in_rl_loss(texts)
    for name, mask in masks.items():
        columns = columns | {"response_mask": _both(name, mask, columns.get("response_mask"))}
    return columns


def with_unpaired(columns: Columns) -> Columns:
    """Return the columns with one that says where the sampler's log-prob is NaN, so that these tokens are left out.

    TRL (grpo_trainer.py, 1.16.0) takes a ratio of 1 there and leaves them out of its metrics. A ratio of 1 adds nothing
    to the log-ratio of a response, and among the numbers it would look like a perfect agreement.
    """
    column = columns["rollout_log_probs"]
    if isinstance(column, Lists):
        return columns | {UNPAIRED: Lists(column.values.isnan(), column.lengths, column.padded)}
    return columns | {UNPAIRED: column.isnan()} if isinstance(column, torch.Tensor) else columns  # refused later


def _both(name: str, mask: Column, response_mask: Column | None) -> Column:
    """The product of the two masks; one that is empty belongs to a file of which only the columns are looked at."""
    if not isinstance(mask, Lists):
        if isinstance(mask, torch.Tensor) and not len(mask):
            return mask if response_mask is None else response_mask
        raise UsageError(f"{name} must hold a list of numbers per row.")
    counts = torch.where(mask.values.isnan(), 1, mask.values) if mask.values.is_floating_point() else mask.values
    if bool(((counts != 0) & (counts != 1)).any()):
        odd = counts[(counts != 0) & (counts != 1)][0]
        raise UsageError(
            f"{name} holds {float(odd):g}: it says which tokens count by 0 and 1, other weights are not known here."
        )
    if response_mask is None:
        return Lists(counts, mask.lengths)
    if not isinstance(response_mask, Lists) or not torch.equal(response_mask.lengths, mask.lengths):
        raise UsageError(f"{name} must have the shape of response_mask.")
    return Lists(response_mask.values * counts, mask.lengths)


def _in_rl_loss(texts: list[str]) -> Lists:
    """The masks of the RL loss in prime-rl's records of losses, one JSON text per row."""
    rows = [[1.0 if _mask_of(record) else 0.0 for record in json.loads(text)] for text in texts]
    values = torch.tensor([number for row in rows for number in row])
    return Lists(values, torch.tensor([len(row) for row in rows]))


def _mask_of(record: object) -> bool:
    channel = record.get(RL, {}) if isinstance(record, dict) else None
    if not isinstance(channel, dict):
        raise UsageError(f"{LOSSES} must hold an object of losses per token; got {record!r:.60}.")
    return bool(channel.get("mask"))
