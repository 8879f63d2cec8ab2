"""Mean gradients of bootstrap samples, their noise, and the variance of one answer, direction by direction."""

import torch
from torch import Tensor

from rlcorr.config import LossConfig
from rlcorr.gradients.contributions import Contributions
from rlcorr.gradients.sketch import Reference

TINY = 1e-30


def blocks_of(reference: Reference, loss: LossConfig, mask: Tensor) -> Contributions:
    """Return the reference as contributions of blocks.

    A token-mean is divided by the mean length in the batch, not in the reference: otherwise answers of another length
    would look like a bias. Without a loss_scale_factor both sides are divided by the batch's columns, which cancel.
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


def mean_gradients(parts: Contributions, drawn: Tensor) -> Tensor:
    """(1 + R, K): the gradient of each bootstrap sample, `drawn` (1 + R, U) how often it has each unit."""
    return drawn @ parts.u / _divisors(parts, drawn)[:, None]


def answer_variances(parts: Contributions, drawn: Tensor, *, sampled: bool) -> Tensor:
    """(1 + R, K): the variance V of one answer's contribution. The gradient of a batch of B answers has V/B, by the
    delta method on Σu/Σn, the factor of batch normalisation held fixed: V = E (u − n E g)² / (E n)². Of `sampled`
    answers with the factor that makes it unbiased; where they are all there, so is E g."""
    divisor = _divisors(parts, drawn)[:, None]
    mean = drawn @ parts.u / divisor
    scale = divisor / (drawn @ parts.n).clamp(min=TINY)[:, None]  # the factor
    squares = drawn @ parts.u_square - 2 * scale * mean * (drawn @ parts.u_n)
    squares = squares + (scale * mean).square() * (drawn @ parts.n_square)[:, None]
    units = drawn.sum(-1, keepdim=True)
    factor = _unbiased(len(parts.n)) if sampled else 1.0
    return (units * squares / divisor / divisor).clamp(min=0) * factor  # the square of TINY would be 0


def covariances(a: Contributions, b: Contributions) -> Tensor:
    """(K,): the covariance of two mean gradients of the same units, by the same method. Of one with itself: what noise
    adds to its squares."""
    (moved_a, total_a), (moved_b, total_b) = _moved(a), _moved(b)
    return (moved_a / total_a * (moved_b / total_b)).sum(0) * _unbiased(len(a.n))


def difference_noise(a: Contributions, b: Contributions) -> Tensor:
    """(K,): what noise adds to the squares of the difference of two mean gradients of the same units."""
    (moved_a, total_a), (moved_b, total_b) = _moved(a), _moved(b)
    return (moved_a / total_a - moved_b / total_b).square().sum(0) * _unbiased(len(a.n))


def _divisors(parts: Contributions, drawn: Tensor) -> Tensor:
    """(1 + R,): Σn, times the factor of batch normalisation."""
    factor = (drawn @ parts.total) / (drawn @ parts.count).clamp(min=TINY)
    return (drawn @ parts.n).clamp(min=TINY) * torch.where(factor > 1e-8, factor, 1.0)


def _moved(parts: Contributions) -> tuple[Tensor, Tensor]:
    """How far each unit alone moves the mean gradient, times the divisor, (U, K); and the divisor."""
    all_once = torch.ones(1, len(parts.n)).to(parts.n)
    divisor = _divisors(parts, all_once)[0]
    share = parts.n * divisor / parts.n.sum().clamp(min=TINY)
    return parts.u - share[:, None] * mean_gradients(parts, all_once)[0], divisor


def _unbiased(units: int) -> float:
    return units / max(units - 1, 1)
