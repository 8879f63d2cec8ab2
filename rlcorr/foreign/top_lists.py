"""The sampler's likeliest tokens at each position: K ids and log-probs per token, one token after the other."""

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists, require_lists
from rlcorr.foreign.values import whole_numbers
from rlcorr.types import ROUNDED_UP, TOP


def top_lists(columns: Columns, rollout: Lists, paired: Tensor) -> dict[str, Tensor]:
    """Return the lists of the paired tokens by name, (N, K) each; none if the file has none.

    Raises `UsageError` if a token has more or fewer numbers than the others, if a file has only a part of the columns
    that belong together, and for log-probs that are NaN or above 0.
    """
    present = [name for name in TOP if name in columns]
    if not present:
        return {}
    if present != list(TOP) and present != list(TOP[:2]):
        raise UsageError(f"{', '.join(TOP[:2])} belong together; the file has {', '.join(present)}.")
    tables = {name: _table(name, columns, rollout)[paired] for name in present}
    if len({table.shape for table in tables.values()}) > 1:
        sizes = ", ".join(f"{name} {table.shape[1]}" for name, table in tables.items())
        raise UsageError(f"every token must have as many log-probs as ids; got {sizes} per token.")
    for name in present[1:]:
        if bool((tables[name].isnan() | (tables[name] > ROUNDED_UP)).any()):
            raise UsageError(f"{name} must be natural logarithms of probabilities, ≤ 0 and not NaN.")
    return tables | {"top_ids": whole_numbers("top_ids", tables["top_ids"])}


def _table(name: str, columns: Columns, rollout: Lists) -> Tensor:
    lists = require_lists(name, columns[name])
    tokens = max(int(rollout.lengths.sum()), 1)
    count = len(lists.values) // tokens
    if len(wrong := (lists.lengths != count * rollout.lengths).nonzero()):
        row = int(wrong[0])
        raise UsageError(
            f"row {row} (from 0): {name} has {int(lists.lengths[row])} numbers for {int(rollout.lengths[row])} tokens; "
            "every token must have the same number of them."
        )
    return lists.values.view(-1, count)


def padded(table: Tensor, mask: Tensor, name: str) -> Tensor:
    """Return (N, K) as (B, T, K), with −1 (ids) or 0 where the mask (B, T) is false.

    >>> padded(torch.tensor([[5, 7]]), torch.tensor([[True, False]]), "top_ids").tolist()
    [[[5, 7], [-1, -1]]]
    """
    filled = torch.full((*mask.shape, table.shape[1]), -1 if name == "top_ids" else 0).to(table)
    filled[mask] = table
    return filled
