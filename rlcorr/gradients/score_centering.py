"""Score centering: removes the drift that sampling from another policy adds to the policy gradient.

E_q[A w ∇log p] = Cov_q(A, w ∇log p) + E_q[A] · E_q[w ∇log p]. On policy the second term is 0 for any A. Off policy it
is a drift in a direction that no reward chose. Subtracting E_q[w ∇log p] at every position removes it
(arXiv:2609.20807). This needs the whole distributions of both policies, which recorded sketches contain. prime-rl, vime
and miles have only the likeliest tokens and model the rest; this file does not.

Score centering hurts if the mean advantage is positive and nothing else keeps the two policies together. There the
drift pulls π_θ towards the sampler, and without it the gap between them can grow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import REPLICATES, Interval, interval_of, resampled
from rlcorr.gradients.sketch import NextTokens


@dataclass(frozen=True)
class DriftReport:
    """Size of the drift at the recorded positions.

    The unit is √E‖w s‖², the size of one token's gradient with |A| = 1.
    """

    drift: Interval
    """‖mean over the positions of E_q[w s]‖: what score centering removes per unit of the mean advantage."""
    of_place: Interval
    """Root of the mean over the positions of ‖E_q[w s]‖²: the same before positions cancel each other."""


def centered_losses(
    log_probs: Tensor, rollout_log_probs: Tensor, tokens: Tensor, advantages: Tensor, config: CorrectionConfig
) -> Tensor:
    """Compute −sg(A) [sg(w_a) log p_a − Σ_v sg(q_v w_v) log p_v] for the sampled tokens a.

    w is the token weight of the configuration, or 1 without weights. Only log p has a gradient.

    Args:
        log_probs: log p of all tokens at P positions, (P, V).
        rollout_log_probs: log q, (P, V).
        tokens: sampled tokens, (P,).
        advantages: (P,).

    Returns:
        One loss per position, (P,).

    Raises `UsageError` for sequence weights and for rejection rules, which use more than one position.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.8, 0.2]]).log()
    >>> loss = centered_losses(p, q, torch.tensor([0]), torch.ones(1), CorrectionConfig())
    >>> loss.item()  # the scores of both tokens have the same log p, so nothing is left of its value
    0.0
    """
    w = _weights(log_probs.detach(), rollout_log_probs, config)
    expected = rollout_log_probs.exp() * w
    sampled = torch.nn.functional.one_hot(tokens, w.shape[-1]).to(w) * w
    coefficients = (sampled - expected).detach()
    return -advantages.detach() * (coefficients * torch.where(coefficients != 0, log_probs, 0)).sum(-1)


def drift_report(
    positions: NextTokens, config: CorrectionConfig, *, replicates: int = REPLICATES, seed: int = 0
) -> DriftReport:
    """Measure what the engine's own distribution adds to the gradient at the recorded positions.

    It is exact over the next token; the intervals are over the positions. Raises `UsageError` for the same reasons as
    `centered_losses`, and without the engine's distributions.
    """
    engine = positions.rollout_log_probs
    if engine is None:
        raise UsageError("the recorded positions have no distribution of π_rollout: the run had none at that step.")
    w = _weights(positions.log_probs, engine, config)
    q = engine.exp()
    drift = torch.einsum("pv,pvk->pk", (q * w).to(positions.scores), positions.scores)
    squares = (q * w.square() * positions.scores.square().sum(-1)).sum(-1)
    shares = resampled(len(q), replicates, seed).to(drift) / len(q)
    size = (shares @ squares.to(shares)).sqrt().clamp(min=1e-30)
    return DriftReport(
        drift=interval_of((shares @ drift).norm(dim=-1) / size, signed=False),
        of_place=interval_of((shares @ drift.square().sum(-1)).sqrt() / size, signed=False),
    )


def _weights(log_probs: Tensor, rollout_log_probs: Tensor, config: CorrectionConfig) -> Tensor:
    """Return the token weights, (P, V). Those of tokens that the engine never samples are not used."""
    if config.rollout_is not in (None, "token") or config.rollout_rs:
        raise UsageError(
            f"score centering uses one position: it allows rollout_is None or 'token', and no rollout_rs; got "
            f"rollout_is {config.rollout_is!r} and {len(config.rollout_rs)} rules."
        )
    if config.weights is None:
        return torch.ones_like(log_probs)
    sampled = rollout_log_probs > -torch.inf
    return config.weights.bounded(torch.where(sampled, log_probs - rollout_log_probs, 0))
