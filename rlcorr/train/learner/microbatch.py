"""Micro-batches: rows that fit a token budget, the same number of them on every rank.

All of it is arithmetic on lengths that every rank knows, so no rank ever has to ask another how many there are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.types import TokenBatch

Lengths = Sequence[tuple[int, int]]
"""Prompt and response tokens of each row of a batch."""


def lengths_of(batch: TokenBatch) -> Lengths:
    assert batch.prompt_mask is not None
    return list(zip(batch.prompt_mask.sum(-1).tolist(), batch.response_mask.sum(-1).tolist(), strict=True))


def plan(rows: Sequence[int], lengths: Lengths, budget: int, size: int = 1) -> list[list[list[int]]]:
    """For each of `size` ranks its micro-batches, as lists of rows; an empty list is a padding micro-batch.

    All ranks get as many as the one that has most, so that their collectives stay in step.
    """
    ranks = [packed(share, lengths, budget) for share in spread(rows, lengths, size)]
    most = max(map(len, ranks))
    return [groups + [[] for _ in range(most - len(groups))] for groups in ranks]


def spread(rows: Sequence[int], lengths: Lengths, size: int) -> list[list[int]]:
    """The rows of each rank: longest first, each to the rank that has the fewest tokens so far."""
    shares: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for row in _longest_first(rows, lengths):
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += sum(lengths[row])
    return shares


def packed(rows: Sequence[int], lengths: Lengths, budget: int) -> list[list[int]]:
    """`rows` in groups of at most `budget` tokens through the model; a row longer than the budget goes alone.

    Prompts are padded on the left and responses on the right, each to the longest of the group.
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


def take(batch: TokenBatch, rows: Sequence[int]) -> TokenBatch:
    """These rows without the columns that only pad; no rows: the padding micro-batch of this batch."""
    if not rows:
        return padding_of(batch)
    return trimmed(batch.rows(torch.tensor(rows, device=batch.response_mask.device)))


def trimmed(batch: TokenBatch) -> TokenBatch:
    """Without leading columns in which no prompt has begun and trailing ones in which every response has ended."""
    assert batch.prompt_mask is not None
    start = batch.prompt_mask.shape[1] - _width(batch.prompt_mask)
    return _columns(batch, start, max(_width(batch.response_mask), 1))


def padding_of(batch: TokenBatch) -> TokenBatch:
    """A micro-batch of one row that counts for nothing: the batch's own first row with every response token masked.

    Each field of the batch is there, because it is cut from the batch itself: what one rank has, all have.
    """
    row = trimmed(batch.rows(slice(0, 1)))
    return row.replace(response_mask=torch.zeros_like(row.response_mask))


def require(batch: TokenBatch, names: Sequence[str]) -> None:
    """Raises `UsageError` with the names of missing fields; called before anything that other ranks wait for."""
    missing = [name for name in names if name not in batch.tensors()]
    if missing:
        raise UsageError(f"the batch lacks {', '.join(missing)}; it has {', '.join(batch.tensors())}.")


def _width(mask: Tensor) -> int:
    return int(mask.sum(-1).max())


def _columns(batch: TokenBatch, start: int, stop: int) -> TokenBatch:
    """Prompt columns from `start`, response columns up to `stop`."""
    assert batch.prompt_mask is not None
    prompt = batch.prompt_mask.shape[1]
    columns = batch.response_mask.shape[1]
    cut = {}
    for name, tensor in batch.tensors().items():
        if name in ("prompt_ids", "prompt_mask"):
            cut[name] = tensor[:, start:]
        elif name == "routed_experts":
            cut[name] = tensor[:, start : prompt + stop]
        elif tensor.dim() == 2 and tensor.shape[1] == columns:
            cut[name] = tensor[:, :stop]
        else:
            cut[name] = tensor
    return TokenBatch(**cut)
