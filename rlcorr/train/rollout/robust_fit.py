"""Linear regression under noise with heavy tails."""

from dataclasses import dataclass

import torch
from torch import Tensor

DEGREES = 4.0
"""Degrees of freedom of the noise: few, because rounding gives a few tokens errors of ten times the usual size."""
STEPS = 100


@dataclass(frozen=True)
class RobustFit:
    """Result of the regression y = X·coefficients + noise."""

    coefficients: Tensor  # (G,)
    errors: Tensor  # (G,) standard errors; infinite for a column of zeros, which has no part in y
    scale: float  # of the noise


def robust_fit(columns: Tensor, target: Tensor) -> RobustFit:
    """Fit by maximum likelihood under Student's t with four degrees of freedom.

    Args:
        columns: (N, G) float64.
        target: (N,) float64.

    Uses iterated weighted least squares and the standard errors of Lange, Little and Taylor, Robust statistical
    modeling using the t distribution, JASA 84 (1989): weights (ν + 1)/(ν + r²/s²), information
    (ν + 1)/(ν + 3) · XᵀX/s². The result is on the CPU, because only there torch can solve for columns of low rank.
    """
    columns, target = columns.cpu(), target.cpu()
    length = columns.norm(dim=0)
    present = length > 1e-12 * length.max()
    unit = torch.where(present, columns / length.where(present, torch.ones_like(length)), 0)
    weights = torch.ones_like(target)
    scaled, square = torch.zeros_like(length), target.square().mean()
    for _ in range(STEPS):
        root = weights.sqrt()
        scaled = torch.linalg.lstsq(root[:, None] * unit, root * target, driver="gelsd").solution
        residual = target - unit @ scaled
        square = (weights * residual.square()).mean().clamp(min=1e-300)
        weights = (DEGREES + 1) / (DEGREES + residual.square() / square)
    square = square * len(target) / max(len(target) - len(length), 1)
    variance = (DEGREES + 3) / (DEGREES + 1) * square * torch.linalg.pinv(unit.T @ unit, hermitian=True).diagonal()
    errors = torch.where(present, variance.sqrt() / length, torch.inf)
    return RobustFit(torch.where(present, scaled / length, 0), errors, float(square.sqrt()))
