"""Loss masks of other systems' files: which tokens and rewards count. A column that may be one is used or refused."""

import json
from collections.abc import Collection

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists
from rlcorr.systems.loss_masks import LOSSES, MASKS, REFUSED, REWARDS, RL, may_count

UNPAIRED = "unpaired"
"""Column (B, T) that this program adds: true if the token has no log-prob of the engine, so that its ratio is 1."""


def refuse_unknown_masks(names: Collection[str], understood: Collection[str]) -> None:
    """Raise `UsageError` for a column that may be a loss mask, by its name, and is not one of the `understood`."""
    for name in names:
        if name in REFUSED:
            raise UsageError(f"has a column {name}: {REFUSED[name]}.")
        if name not in understood and name not in MASKS and may_count(name):
            raise UsageError(
                f"{name!r:.60} may say which tokens count, but its meaning is unknown: multiply it into the "
                "response_mask, or leave it out."
            )


def apply_masks(columns: Columns, theirs: Columns) -> Columns:
    """Return our columns with the masks in `theirs` multiplied into response_mask, and with the rewards in `theirs`.

    Raises `UsageError` for a mask of another shape, or with other numbers than 0 and 1.
    """
    for name, replaced in REWARDS.items():
        if name in theirs:
            columns = columns | {replaced: theirs[name]}
    masks = {name: theirs[name] for name in MASKS if name in theirs}
    if isinstance(texts := theirs.get(LOSSES), list):
        masks[LOSSES] = _rl_loss_masks(texts)
    for name, mask in masks.items():
        columns = columns | {"response_mask": _multiply_masks(name, mask, columns.get("response_mask"))}
    return columns


def mark_unpaired(columns: Columns) -> Columns:
    """Return the columns with `UNPAIRED` added: true where the sampler's log-prob is NaN. These tokens are left out.

    TRL (grpo_trainer.py, 1.16.0) takes a ratio of 1 there and leaves them out of its metrics. A ratio of 1 adds nothing
    to the log-ratio of a response, and in the metrics it would look like a perfect agreement.
    """
    column = columns["rollout_log_probs"]
    if isinstance(column, Lists):
        return columns | {UNPAIRED: Lists(column.values.isnan(), column.lengths, column.padded)}
    return columns | {UNPAIRED: column.isnan()} if isinstance(column, torch.Tensor) else columns  # refused later


def _multiply_masks(name: str, mask: Column, response_mask: Column | None) -> Column:
    """Return the product of the two masks; `mask` may be null (NaN), which counts as 1.

    An empty mask is ignored: `stream.check_columns` passes one if it looks at the names of the columns only.
    """
    if not isinstance(mask, Lists):
        if isinstance(mask, torch.Tensor) and not len(mask):
            return mask if response_mask is None else response_mask
        raise UsageError(f"{name} must hold a list of numbers per row.")
    counts = torch.where(mask.values.isnan(), 1, mask.values) if mask.values.is_floating_point() else mask.values
    if bool(((counts != 0) & (counts != 1)).any()):
        odd = counts[(counts != 0) & (counts != 1)][0]
        raise UsageError(f"{name} must hold 0 and 1, which say whether a token counts; got {float(odd):g}.")
    if response_mask is None:
        return Lists(counts, mask.lengths)
    if not isinstance(response_mask, Lists) or not torch.equal(response_mask.lengths, mask.lengths):
        raise UsageError(f"{name} must have the shape of response_mask.")
    return Lists(response_mask.values * counts, mask.lengths)


def _rl_loss_masks(texts: list[str]) -> Lists:
    """Return the masks of the RL loss from prime-rl's column of losses, which has one JSON text per row."""
    rows = [[1.0 if _rl_mask(record) else 0.0 for record in _records(text)] for text in texts]
    values = torch.tensor([number for row in rows for number in row])
    return Lists(values, torch.tensor([len(row) for row in rows]))


def _records(text: str) -> list[object]:
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{LOSSES} must hold JSON; got {text!r:.60}.") from error
    if not isinstance(records, list):
        raise UsageError(f"{LOSSES} must hold a list of losses, one per token; got {text!r:.60}.")
    return records


def _rl_mask(record: object) -> bool:
    channel = record.get(RL, {}) if isinstance(record, dict) else None
    if not isinstance(channel, dict):
        raise UsageError(f"{LOSSES} must hold an object of losses per token; got {record!r:.60}.")
    return bool(channel.get("mask"))
