"""The term of score centering, from the sampler's likeliest tokens (arXiv:2609.20807).

E_q[A w ∇log p] = Cov_q(A, w ∇log p) + E_q[A] · E_q[w ∇log p]. On policy, the second term is 0 for any advantages. Off
policy, it is a drift towards or away from whatever the sampler draws, which no reward chose. Score centering subtracts
E_q[w ∇log p] at every position. A trainer knows q for the head H only, the sampler's K likeliest tokens, and takes the
tail of q as proportional to its own: q(v) ≈ ρ p(v) outside H, with ρ = (1 − Σ_H q)/(1 − Σ_H p).
"""

import math

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.ratios import at_least_float32
from rlcorr.types import TokenBatch

SMALLEST_TAIL = 1e-6
"""Smallest probability of the trainer's tail, as in NeMo RL and Fireworks' cookbook."""


def can_center(config: CorrectionConfig) -> bool:
    """Return whether the correction and its loss depend on nothing but the position of a token.

    Otherwise E_q[w ∇log p] is not an expectation over one next token.
    """
    weights = config.rollout_is in (None, "token") and not config.rollout_is_batch_normalize
    return weights and not config.rollout_rs and LOSSES[config.loss_type].alone


def check_centering(config: CorrectionConfig) -> None:
    """Raise `UsageError` if score centering does not go with a correction."""
    if not can_center(config):
        raise UsageError(
            "score centering uses one position: it goes with rollout_is None or 'token' without batch normalisation, "
            f"without rollout_rs, and with the losses {', '.join(LOSSES)}; got rollout_is {config.rollout_is!r}, "
            f"{len(config.rollout_rs)} rules and {config.loss_type}."
        )


def centering_terms(top_log_probs: Tensor, rollout_top_log_probs: Tensor, config: CorrectionConfig) -> Tensor:
    """Compute C = Σ_H sg(m(v) − α p(v)) log p(v) at each position, so that ∇C ≈ E_q[w ∇log p]. The loss gets A · C.

    | weights | m(v) in the head | α in the tail |
    |---|---|---|
    | none | q | ρ |
    | truncated to [l, h] | clamp(p, l q, h q) | clamp(1, l ρ, h ρ) |
    | masked outside [l, h] | p where l ≤ p/q ≤ h, else 0 | 1 if l ≤ 1/ρ ≤ h, else 0 |

    Without bounds, w q = p, and C has no gradient. Token weights are those of π_θ here, also where the loss weights
    tokens by π_old: they are the same at the first update of a batch.

    Args:
        top_log_probs: log p = log π_θ of the head, with a graph, (..., K).
        rollout_top_log_probs: log q, (..., K); −∞ for tokens that the sampler cannot draw.

    Returns:
        C, (...). Raises `UsageError` as `check_centering` does.

    Source: the guide "Score Centering" of NeMo RL (nightly documentation, November 2026).

    >>> p, q = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.6, 0.25]).log()  # ρ = 0.15/0.25
    >>> round(float(centering_terms(p, q, CorrectionConfig())), 4)  # (0.6 − 0.3) log 0.5 + (0.25 − 0.15) log 0.25
    -0.3466
    """
    check_centering(config)
    p = torch.where(rollout_top_log_probs > -torch.inf, top_log_probs.detach().exp(), 0)
    q = rollout_top_log_probs.exp()
    coefficients = score_coefficients_of(p, q, p.sum(-1, keepdim=True), q.sum(-1, keepdim=True), config)
    return (coefficients * torch.where(coefficients != 0, top_log_probs, 0)).sum(-1)


def score_coefficients_of(p: Tensor, q: Tensor, head_p: Tensor, head_q: Tensor, config: CorrectionConfig) -> Tensor:
    """Compute m(v) − α p(v) for tokens of a head, whose probabilities are `head_p` and `head_q` together."""
    rho = (1 - head_q).clamp(min=0) / (1 - head_p).clamp(min=SMALLEST_TAIL)
    low, high = config.rollout_is_threshold_lower or 0.0, config.rollout_is_threshold
    if config.rollout_is is None:
        mass, alpha = q, rho
    elif config.rollout_is_mode == "truncate":
        mass, alpha = _clamped(p, q, low, high), _clamped(torch.ones_like(rho), rho, low, high)
    else:
        mass = torch.where((p >= low * q) & (p <= high * q), p, 0)
        alpha = ((low * rho <= 1) & (high * rho >= 1)).to(rho)
    return torch.where(q > 0, mass - alpha * p, 0)


def _clamped(x: Tensor, scale: Tensor, low: float, high: float) -> Tensor:
    """Return x, clamped to [low · scale, high · scale]."""
    above = x.clamp(min=low * scale)
    return above if math.isinf(high) else above.clamp(max=high * scale)  # ∞ · 0 is no bound


def centering_of(batch: TokenBatch, top_log_probs: Tensor | None, config: CorrectionConfig, keep: Tensor) -> Tensor:
    """Return `centering_terms` of a batch, (B, T), and 0 outside `keep`.

    Raises `UsageError` without the log-probs of the likeliest tokens under both policies.
    """
    if top_log_probs is None or batch.rollout_top_log_probs is None:
        raise UsageError(
            "score centering needs the log-probs of the sampler's likeliest tokens: record them with "
            "--rollout.top-logprobs 20, and pass top_log_probs."
        )
    rollout, theta = (
        torch.where(keep[..., None], at_least_float32(x), 0) for x in (batch.rollout_top_log_probs, top_log_probs)
    )
    return torch.where(keep, centering_terms(theta, rollout, config), 0)
