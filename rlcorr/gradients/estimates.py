"""Mean gradients of bootstrap samples, their noise, and the variance of one answer, for each direction of a sketch."""

import torch
from torch import Tensor

from rlcorr.config import LossConfig
from rlcorr.gradients.contributions import Contributions
from rlcorr.gradients.sketch import Reference

TINY = 1e-30


def blocks_of(reference: Reference, loss: LossConfig, mask: Tensor) -> Contributions:
    """Return the reference as contributions of blocks.

    A token-mean is divided by the mean length in the batch, not in the reference: otherwise answers of another length
    would look like a bias. Without a loss_scale_factor both sides are divided by the number of columns of the batch,
    which cancels.
    """
    mode = loss.loss_agg_mode
    u = reference.by_sequence if mode == "seq-mean-token-mean" else reference.by_token
    n = reference.sequences
    if mode == "token-mean":
        n = n * mask.sum(-1).float().mean()
    if mode == "seq-mean-token-sum-norm":
        n = n * (mask.shape[1] if loss.loss_scale_factor is None else loss.loss_scale_factor)
    n = n.to(u)
    one = torch.ones_like(n)
    return Contributions(
        u=u, n=n, weight=one, total=one, count=one, u_square=u.square(), u_n=u * n[:, None], n_square=n.square(),
        weight_square=one, probability=one,
    )  # fmt: skip


def mean_gradients(parts: Contributions, counts: Tensor) -> Tensor:
    """Compute the gradient of each bootstrap sample, (1 + R, K). `counts` is how often it has each unit, (1 + R, U)."""
    return counts @ parts.u / _divisors(parts, counts)[:, None]


def answer_variances(parts: Contributions, counts: Tensor, *, sampled: bool) -> Tensor:
    """Compute the variance V of one answer's contribution in each bootstrap sample, (1 + R, K).

    The gradient of a batch of B answers has the variance V/B, by the delta method on Σu/Σn with the factor of batch
    normalisation fixed: V = E (u − n E g)² / (E n)². For `sampled` answers V includes the factor U/(U − 1) that makes
    it unbiased. With all answers present E g is exact, and V needs no factor.
    """
    divisor = _divisors(parts, counts)[:, None]
    mean = counts @ parts.u / divisor
    scale = divisor / (counts @ parts.n).clamp(min=TINY)[:, None]  # the factor of batch normalisation
    squares = counts @ parts.u_square - 2 * scale * mean * (counts @ parts.u_n)
    squares = squares + (scale * mean).square() * (counts @ parts.n_square)[:, None]
    units = counts.sum(-1, keepdim=True)
    factor = _unbiased(len(parts.n)) if sampled else 1.0
    return (units * squares / divisor / divisor).clamp(min=0) * factor  # divided twice, because TINY² would be 0


def covariances(a: Contributions, b: Contributions) -> Tensor:
    """Compute the covariance of two mean gradients of the same units, (K,), by the delta method.

    The covariance of a gradient with itself is what noise adds to its squares.
    """
    (influence_a, total_a), (influence_b, total_b) = _influence(a), _influence(b)
    return (influence_a / total_a * (influence_b / total_b)).sum(0) * _unbiased(len(a.n))


def difference_noise(a: Contributions, b: Contributions) -> Tensor:
    """Compute what noise adds to the squared difference of two mean gradients of the same units, (K,)."""
    (influence_a, total_a), (influence_b, total_b) = _influence(a), _influence(b)
    return (influence_a / total_a - influence_b / total_b).square().sum(0) * _unbiased(len(a.n))


def _divisors(parts: Contributions, counts: Tensor) -> Tensor:
    """Return Σn times the factor of batch normalisation, (1 + R,)."""
    factor = (counts @ parts.total) / (counts @ parts.count).clamp(min=TINY)
    return (counts @ parts.n).clamp(min=TINY) * torch.where(factor > 1e-8, factor, 1.0)


def _influence(parts: Contributions) -> tuple[Tensor, Tensor]:
    """Return how far each unit alone moves the mean gradient, times the divisor, (U, K); and the divisor."""
    all_once = torch.ones(1, len(parts.n)).to(parts.n)
    divisor = _divisors(parts, all_once)[0]
    share = parts.n * divisor / parts.n.sum().clamp(min=TINY)
    return parts.u - share[:, None] * mean_gradients(parts, all_once)[0], divisor


def _unbiased(units: int) -> float:  # turns a mean square into an unbiased variance
    return units / max(units - 1, 1)
