"""The whole gradient of a number, and its products with the directions of a sketch, by plain autograd."""

from typing import Any

import torch
from torch import Tensor

from rlcorr.train.sketches.token_scores import Directions

LETTERS = "abc"


def whole_gradient(lm: Any, value: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*lm.named_parameters(), strict=True)
    gradients = torch.autograd.grad(value, weights, retain_graph=True, materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


def along(gradient: dict[str, Tensor], directions: Directions) -> Tensor:
    """⟨gradient, direction⟩/√K, (K,)."""
    parts = []
    for name, g in gradient.items():
        axes = LETTERS[: g.dim()]
        parts.append(torch.einsum(",".join([axes, *(f"{axis}k" for axis in axes)]) + "->k", g, *directions.signs[name]))
    return torch.stack(parts).sum(0) * directions.count**-0.5
