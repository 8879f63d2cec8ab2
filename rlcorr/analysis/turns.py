"""Corrections per turn: each turn of a conversation is corrected as if it were an answer of its own.

In an answer of an agent, tools or other speakers answer in between. A product of ratios over all turns grows with their
number, and its mean mixes turns that may have been sampled by different weights. With a turn per row, the sequence
weights and the rules on sequences of any correction are those of a turn.
"""

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.types import CorrectionResult, TokenBatch

_PER_TOKEN = (
    "rollout_log_probs", "old_log_probs", "sampled_log_probs", "log_probs", "ref_log_probs", "values", "advantages",
    "returns", "response_ids", "policy_versions", "turn_ids",
)  # fmt: skip
_PER_ROW = ("rewards", "group_ids", "policy_versions")


def turns_as_rows(batch: TokenBatch) -> TokenBatch:
    """Return a batch with one row per turn, in the order of the rows and their turns, without prompts.

    A row's reward, group and version go to each of its turns. Raises `UsageError` without turn_ids.
    """
    turn, column, rows = _places(batch)
    shape = len(rows), int(column.max()) + 1 if len(column) else 0
    mask = torch.zeros(shape, dtype=torch.bool, device=turn.device)
    mask[turn, column] = True
    fields: dict[str, Tensor] = {}
    for name, tensor in batch.tensors().items():
        if name in _PER_TOKEN and tensor.shape == batch.response_mask.shape:
            fields[name] = tensor.new_zeros(shape)
            fields[name][turn, column] = tensor[batch.response_mask]
        elif name in _PER_ROW:
            fields[name] = tensor[rows]
    return TokenBatch(response_mask=mask, **fields)


def correct_per_turn(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """Correct each turn on its own, and return the result in the shape of the batch, (B, T).

    Raises `UsageError` without turn_ids, and as `correct` does.
    """
    by_turn = correct(turns_as_rows(batch), config)
    turn, column, _ = _places(batch)

    def placed(x: Tensor) -> Tensor:
        y = x.new_zeros(batch.response_mask.shape)
        y[batch.response_mask] = x[turn, column]
        return y

    return CorrectionResult(
        placed(by_turn.log_ratio),
        placed(by_turn.weights),
        placed(by_turn.keep_mask),
        placed(by_turn.rejected_by),
        by_turn.norm_factor,
    )


def _places(batch: TokenBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each real token the number of its turn among all turns and its place in that turn, (N,) each; and of
    each turn the row of the batch that it belongs to."""
    if batch.turn_ids is None:
        raise UsageError("a correction per turn needs turn_ids; this batch has none.")
    mask = batch.response_mask
    row = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
    pairs = torch.stack([row, batch.turn_ids[mask].to(row)], -1)
    turns, turn, count = pairs.unique(dim=0, return_inverse=True, return_counts=True)
    order = turn.argsort(stable=True)
    first = count.cumsum(0) - count
    column = torch.empty_like(turn)
    column[order] = torch.arange(len(turn), device=turn.device) - first[turn[order]]
    return turn, column, turns[:, 0]
