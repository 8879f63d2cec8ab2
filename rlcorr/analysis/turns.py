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
    if batch.turn_ids is None:
        raise UsageError("a correction per turn needs turn_ids; this batch has none.")
    old_mask = batch.response_mask
    row = torch.arange(len(old_mask), device=old_mask.device)[:, None].expand_as(old_mask)[old_mask]
    pairs = torch.stack([row, batch.turn_ids[old_mask].to(row)], -1)
    turns, lengths = pairs.unique_consecutive(dim=0, return_counts=True)
    width = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(width, device=old_mask.device) < lengths[:, None]  # its tokens are in the order of the old mask
    fields: dict[str, Tensor] = {}
    for name, tensor in batch.tensors().items():
        if name in _PER_TOKEN and tensor.shape == old_mask.shape:
            fields[name] = tensor.new_zeros(mask.shape).masked_scatter(mask, tensor[old_mask])
        elif name in _PER_ROW:
            fields[name] = tensor[turns[:, 0]]
    return TokenBatch(response_mask=mask, **fields)


def correct_per_turn(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """Correct each turn on its own, and return the result in the shape of the batch, (B, T).

    Raises `UsageError` without turn_ids, and as `correct` does.
    """
    rows = turns_as_rows(batch)
    of_turns = correct(rows, config)
    log_ratio, weights, keep, rejected = (
        x.new_zeros(batch.response_mask.shape).masked_scatter(batch.response_mask, x[rows.response_mask])
        for x in (of_turns.log_ratio, of_turns.weights, of_turns.keep_mask, of_turns.rejected_by)
    )
    return CorrectionResult(log_ratio, weights, keep, rejected, of_turns.norm_factor)
