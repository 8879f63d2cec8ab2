"""Micro-batches: groups of rows that fit a token budget, the same number of groups on every rank.

The plan depends only on lengths that every rank knows, so the ranks need not exchange it.
"""

from collections.abc import Sequence

import torch

from rlcorr.types import TokenBatch

Lengths = Sequence[tuple[int, int]]
"""Prompt and response tokens of each row of a batch."""


def lengths_of(batch: TokenBatch) -> Lengths:
    assert batch.prompt_mask is not None
    return list(zip(batch.prompt_mask.sum(-1).tolist(), batch.response_mask.sum(-1).tolist(), strict=True))


def plan_microbatches(lengths: Lengths, budget: int, size: int = 1) -> list[list[list[int]]]:
    """Return the micro-batches of each of `size` ranks, as lists of rows.

    Every rank gets as many as the rank that has most, so that all ranks make the same collective calls. The missing
    ones are empty lists, which stand for a padding micro-batch.
    """
    ranks = [pack_rows(share, lengths, budget) for share in split_over_ranks(lengths, size)]
    most = max(map(len, ranks))
    return [groups + [[] for _ in range(most - len(groups))] for groups in ranks]


def split_over_ranks(lengths: Lengths, size: int) -> list[list[int]]:
    """Return the rows of each rank: from the longest row on, each goes to the rank with the fewest tokens so far."""
    shares: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for row in _longest_first(range(len(lengths)), lengths):
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += sum(lengths[row])
    return shares


def pack_rows(rows: Sequence[int], lengths: Lengths, budget: int) -> list[list[int]]:
    """Group rows so that each group has at most `budget` tokens; a row longer than the budget is a group by itself.

    Padding counts: prompts are padded on the left and responses on the right, each to the longest of the group.
    """
    groups: list[list[int]] = []
    prompt = response = 0
    for row in _longest_first(rows, lengths):
        wider = max(prompt, lengths[row][0]), max(response, lengths[row][1])
        if groups and (len(groups[-1]) + 1) * sum(wider) <= budget:
            groups[-1].append(row)
            prompt, response = wider
        else:
            groups.append([row])
            prompt, response = lengths[row]
    return groups


def _longest_first(rows: Sequence[int], lengths: Lengths) -> list[int]:
    return sorted(rows, key=lambda row: -sum(lengths[row]))


def slice_rows(batch: TokenBatch, rows: Sequence[int]) -> TokenBatch:
    """Return these rows without columns that are only padding.

    Without rows, return the batch's padding micro-batch, which adds nothing to the loss: the first row with every
    response token masked. It has the same fields as the batch, so that the forward pass is the same on every rank.
    """
    if rows:
        return trimmed(batch.rows(torch.tensor(rows, device=batch.response_mask.device)))
    row = trimmed(batch.rows(slice(0, 1)))
    return row.replace(response_mask=torch.zeros_like(row.response_mask))


def trimmed(batch: TokenBatch) -> TokenBatch:
    """Return the batch without leading columns before all prompts and trailing columns after all responses."""
    assert batch.prompt_mask is not None
    prompt, columns = batch.prompt_mask.shape[1], batch.response_mask.shape[1]
    start, stop = prompt - int(batch.prompt_mask.sum(-1).max()), max(int(batch.response_mask.sum(-1).max()), 1)
    fields = {}
    for name, tensor in batch.tensors().items():
        if name in ("prompt_ids", "prompt_mask"):
            fields[name] = tensor[:, start:]
        elif name == "routed_experts":  # its columns are those of the prompt, then those of the response
            fields[name] = tensor[:, start : prompt + stop]
        elif tensor.dim() >= 2 and tensor.shape[1] == columns:
            fields[name] = tensor[:, :stop]
        else:
            fields[name] = tensor
    return TokenBatch(**fields)
