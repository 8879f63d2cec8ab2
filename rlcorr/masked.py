"""Masked sums, means and extremes. The mask selects first, so nothing on padding can leak, NaN included."""

import torch
from torch import Tensor


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return Σ x over the entries at which the mask is True."""
    kept = torch.where(mask, x, 0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None, *, count: Tensor | float | None = None) -> Tensor:
    """Return Σ x over the mask, divided by `count`: by default the number of True entries. 0 if there are none.

    >>> x, mask = torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([True, True, False])
    >>> masked_mean(x, mask).item(), masked_mean(x, mask, count=6).item()
    (1.5, 0.5)
    """
    if count is None:
        count = mask.sum() if dim is None else count_true(mask, dim)
    return masked_sum(x, mask, dim) / torch.as_tensor(count, device=x.device).clamp(min=1)


def masked_max(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the largest entry along `dim` at which the mask is True; 0 for an empty row."""
    if x.shape[dim] == 0:
        return x.sum(dim)
    largest = torch.where(mask, x, -torch.inf).amax(dim)
    return torch.where(mask.any(dim), largest, 0)


def masked_min(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the smallest entry along `dim` at which the mask is True; 0 for an empty row."""
    return -masked_max(-x, mask, dim)


def count_true(mask: Tensor, dim: int = -1) -> Tensor:
    """Return the number of True entries along `dim`, as float32: exact up to 2²⁴, and much faster to sum than int64."""
    return mask.to(torch.float32).sum(dim)
