"""Masked sums, means and extremes. The mask selects first, so nothing on padding can leak, NaN included."""

import torch
from torch import Tensor

from rlcorr.types import Moments


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Σ x over the mask."""
    kept = torch.where(mask, x, 0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None, *, count: Tensor | float | None = None) -> Tensor:
    """Σ x over the mask / `count`, by default the number of masked-in entries; 0 where that number is 0."""
    if count is None:
        count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask, dim) / torch.as_tensor(count, device=x.device).clamp(min=1)


def masked_max(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """The largest masked-in entry along `dim`; 0 for an empty row."""
    if x.shape[dim] == 0:
        return x.sum(dim)
    largest = torch.where(mask, x, -torch.inf).amax(dim)
    return torch.where(mask.any(dim), largest, 0)


def moments(x: Tensor, mask: Tensor) -> Moments:
    """Count, Σx, Σx², min and max over the mask, as float64 scalars still on the device.

    An empty selection has count 0, min +inf and max −inf, the neutral elements of `Moments.merge`.
    """
    selected = x[mask].double()
    edge = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64, device=x.device)
    low, high = (selected.min(), selected.max()) if selected.numel() else (edge[0], edge[1])
    count = torch.tensor(float(selected.numel()), dtype=torch.float64, device=x.device)
    return Moments(count, selected.sum(), selected.square().sum(), low, high)
