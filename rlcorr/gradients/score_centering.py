"""Score centering: the policy gradient without the drift that a sampler adds which is not the trained policy.

E_q[A w ∇log p] = Cov_q(A, w ∇log p) + E_q[A] · E_q[w ∇log p]. On policy the second term is 0, whatever A is; off policy
it pushes in a direction that no reward chose. Subtracting E_q[w ∇log p] at every place removes it (arXiv:2609.20807).
That takes the whole distributions of both policies, which recorded sketches have; prime-rl, vime and miles have the
likeliest tokens and model the rest, which is not done here.

It hurts where the mean advantage is positive and nothing else holds the two policies together: there the drift pulls
π_θ towards the sampler, and without it the gap between them is free to grow.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import bound_weights
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import REPLICATES, Interval, interval_of, resampled
from rlcorr.gradients.sketch import NextTokens


@dataclass(frozen=True)
class DriftReport:
    """In units of √E‖w s‖², the size of one token's gradient with |A| = 1, over the places."""

    drift: Interval
    """‖mean over the places of E_q[w s]‖: what score centering takes away for each unit of the mean advantage."""
    of_place: Interval
    """√ of the mean over the places of ‖E_q[w s]‖²: the same before places cancel each other."""


def centered_losses(
    log_probs: Tensor, rollout_log_probs: Tensor, tokens: Tensor, advantages: Tensor, config: CorrectionConfig
) -> Tensor:
    """−sg(A) [sg(w_a) log p_a − Σ_v sg(q_v w_v) log p_v] of the sampled tokens a: (P, V), (P, V), (P,), (P,) → (P,).

    w is the token weight of the configuration, 1 without one. Only log p carries a gradient. Raises `UsageError` for
    weights of sequences and for rejection rules, which see more than one place.

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.8, 0.2]]).log()
    >>> loss = centered_losses(p, q, torch.tensor([0]), torch.ones(1), CorrectionConfig())
    >>> loss.item()  # the scores of both tokens have the same log p, so nothing is left of its value
    0.0
    """
    w = _weights(log_probs.detach(), rollout_log_probs, config)
    expected = rollout_log_probs.exp() * w
    drawn = torch.nn.functional.one_hot(tokens, w.shape[-1]).to(w) * w
    coefficients = (drawn - expected).detach()
    return -advantages.detach() * (coefficients * torch.where(coefficients != 0, log_probs, 0)).sum(-1)


def drift_report(
    places: NextTokens, config: CorrectionConfig, *, replicates: int = REPLICATES, seed: int = 0
) -> DriftReport:
    """What the engine's own distribution adds to the gradient at the recorded places, exact over the next token; the
    intervals are over the places. Raises `UsageError` as `centered_losses`, and without the engine's distributions."""
    engine = places.rollout_log_probs
    if engine is None:
        raise UsageError("the recorded places have no distribution of π_rollout: the run had none at that step.")
    w = _weights(places.log_probs, engine, config)
    q = engine.exp()
    drift = torch.einsum("pv,pvk->pk", (q * w).to(places.scores), places.scores)
    squares = (q * w.square() * places.scores.square().sum(-1)).sum(-1)
    drawn = resampled(len(q), replicates, seed).to(drift) / len(q)
    size = (drawn @ squares.to(drawn)).sqrt().clamp(min=1e-30)
    return DriftReport(
        drift=interval_of((drawn @ drift).norm(dim=-1) / size, signed=False),
        of_place=interval_of((drawn @ drift.square().sum(-1)).sqrt() / size, signed=False),
    )


def _weights(log_probs: Tensor, rollout_log_probs: Tensor, config: CorrectionConfig) -> Tensor:
    """(P, V); of a token that the engine never samples it is not used."""
    if config.rollout_is in ("sequence", "geometric") or config.rollout_rs:
        raise UsageError("score centering looks at one place: it takes rollout_is None or 'token', and no rollout_rs.")
    if config.rollout_is is None:
        return torch.ones_like(log_probs)
    sampled = rollout_log_probs > -torch.inf
    return bound_weights(torch.where(sampled, log_probs - rollout_log_probs, 0), config)
