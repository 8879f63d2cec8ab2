"""Masked sums, means and extremes. The mask selects first, so nothing on padding can leak, NaN included."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.types import Moments


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Σ x over the mask.

    >>> masked_sum(torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False])).item()
    3.0
    """
    kept = torch.where(mask, x, 0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None, *, count: Tensor | float | None = None) -> Tensor:
    """Σ x over the mask / `count`, by default the number of masked-in entries; 0 where that number is 0.

    >>> x, mask = torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False])
    >>> masked_mean(x, mask).item(), masked_mean(x, mask, count=6).item()
    (1.5, 0.5)
    """
    if count is None:
        count = mask.sum() if dim is None else tally(mask, dim)
    return masked_sum(x, mask, dim) / torch.as_tensor(count, device=x.device).clamp(min=1)


def masked_max(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """The largest masked-in entry along `dim`; 0 for an empty row.

    >>> masked_max(torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[True, True, False]]), -1).tolist()
    [-1.0]
    """
    if x.shape[dim] == 0:
        return x.sum(dim)
    largest = torch.where(mask, x, -torch.inf).amax(dim)
    return torch.where(mask.any(dim), largest, 0)


def masked_min(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """The smallest masked-in entry along `dim`; 0 for an empty row.

    >>> masked_min(torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[True, True, False]]), -1).tolist()
    [-2.0]
    """
    return -masked_max(-x, mask, dim)


def moments(
    x: Tensor, mask: Tensor, *, squares: bool = True, extremes: bool = True, count: Tensor | None = None
) -> Moments:
    """Count, Σx, Σx², min and max over the last dimension: (B, T) → (B,), (B,) → (). `count` is `tally(mask)`, for
    those who have it already.

    Without `squares` or `extremes` these are not computed: they are 0, and inf and −inf for the extremes. That is also
    what an empty selection has, and what changes nothing when moments merge.

    >>> one_row = moments(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]]))
    >>> [x.item() for x in (one_row.count, one_row.total, one_row.squares, one_row.low, one_row.high)]
    [2.0, 3.0, 5.0, 1.0, 2.0]
    """
    selected = torch.where(mask, x, 0)
    count = tally(mask) if count is None else count
    edge = torch.full_like(count, torch.inf)
    extremes = extremes and x.shape[-1] > 0
    return Moments(
        count=count,
        total=selected.sum(-1),
        squares=selected.square().sum(-1) if squares else torch.zeros_like(count),
        low=torch.where(mask, x, torch.inf).amin(-1) if extremes else edge,
        high=torch.where(mask, x, -torch.inf).amax(-1) if extremes else -edge,
    )


def shares(flags: Tensor, mask: Tensor) -> Moments:
    """How often something holds, over the last dimension; the mean is the share.

    >>> answers = shares(torch.tensor([True, False, True]), torch.tensor([True, True, False]))
    >>> answers.total.item(), answers.count.item()
    (1.0, 2.0)
    """
    count, total = tally(mask), tally(flags & mask)
    edge = torch.full_like(count, torch.inf)
    return Moments(count, total, total, edge, -edge)


def tally(mask: Tensor, dim: int = -1) -> Tensor:
    """How many along `dim`, as float32: exact to 2²⁴, and much faster to sum than int64.

    >>> tally(torch.tensor([[True, True, False]])).tolist()
    [2.0]
    """
    return mask.to(torch.float32).sum(dim)


def row_moments(x: Tensor, count: Tensor) -> Moments:
    """(B,) → scalars: the moments over tokens of a number that each sequence has once, `count` tokens each.

    >>> weights = row_moments(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0]))  # one token of 0.5, three of 2
    >>> weights.count.item(), weights.total.item(), weights.high.item()
    (4.0, 6.5, 2.0)
    """
    rows = count > 0
    x = torch.where(rows, x, 0)
    return replace(moments(x, rows), count=count.sum(-1), total=(x * count).sum(-1), squares=(x * x * count).sum(-1))
