"""Policy and value losses per token, (B, T).

ρ = π_θ/π_old, with log ρ clamped to ±20; A is the advantage; sg is stop-gradient. In bypass mode π_rollout takes the
place of π_old. Only log π_θ has a gradient. Inputs outside `keep` must be finite, and losses there are not used.
`objective.neutral` makes the inputs finite.
"""

from typing import Literal

import torch
from torch import Tensor

from rlcorr.divergences import prob_diff, signed_kl
from rlcorr.masked import masked_mean
from rlcorr.ratios import SAFETY_BOUND, ratio

DppoType = Literal["dppo_tv", "dppo_kl"]
LARGEST = 1e20
"""A log-ratio whose product with every weight, of at most e²⁰, is finite in float32."""


def ppo_clip(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """Compute PPO's loss max(−A ρ, −A clip(ρ, 1 − low, 1 + high)) (Schulman et al., arXiv:1707.06347).

    >>> theta, old = torch.tensor([1.5, 0.5]).log(), torch.tensor([1.0, 1.0]).log()  # ρ = 1.5 and 0.5
    >>> [round(x, 3) for x in ppo_clip(theta, old, torch.tensor([1.0, 1.0]), low=0.2, high=0.2).tolist()]
    [-1.2, -0.5]
    """
    return _clipped(ratio(log_probs - old_log_probs), advantages, low, high)


def dual_clip(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, low: float, high: float, c: float
) -> Tensor:
    """Compute ppo_clip, limited to c |A| if A < 0 (Ye et al., arXiv:1912.09729). verl calls it "vanilla".

    >>> theta, old = torch.tensor([0.9]).log(), torch.tensor([0.1]).log()  # ρ = 9
    >>> dual_clip(theta, old, torch.tensor([-1.0]), low=0.2, high=0.2, c=3.0).tolist()
    [3.0]
    """
    loss = ppo_clip(log_probs, old_log_probs, advantages, low=low, high=high)
    return torch.where(advantages < 0, torch.minimum(loss, -c * advantages), loss)


def reinforce(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Compute −A log π_θ (Williams, 1992). verl calls it gpg if π_old is recomputed.

    >>> reinforce(torch.tensor([-2.0]), torch.tensor([0.5])).tolist()
    [1.0]
    """
    return -advantages * log_probs


def gspo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, keep: Tensor, *, low: float, high: float
) -> Tensor:
    """Compute ppo_clip of the sequence ratio s = exp(mean log ρ) ≤ e¹⁰, with the gradient of each token's log π_θ.

    Source: Zheng et al., arXiv:2507.18071.

    >>> old = torch.zeros(1, 2)
    >>> theta, keep = old + torch.tensor([2.0, 4.0]).log(), torch.ones(1, 2, dtype=torch.bool)  # s = √8
    >>> [round(x, 3) for x in gspo(theta, old, -torch.ones(1, 2), keep, low=0.2, high=0.2)[0].tolist()]
    [2.828, 2.828]
    """
    mean = masked_mean((log_probs - old_log_probs).detach(), keep, -1)[:, None]
    return _clipped((mean + log_probs - log_probs.detach()).clamp(max=10).exp(), advantages, low, high)


def cispo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """Compute −sg(clip(ρ, 1 − low, 1 + high)) A log π_θ (MiniMax-M1, arXiv:2506.13585).

    SkyRL uses low = 1 and high = 4.

    >>> theta, old = torch.tensor([-1.0]), torch.tensor([-3.0])  # ρ = e², cut to 1.2
    >>> round(cispo(theta, old, torch.tensor([1.0]), low=0.2, high=0.2).item(), 3)
    1.2
    """
    rho = ratio((log_probs - old_log_probs).detach()).clamp(1 - low, 1 + high)
    return -rho * advantages * log_probs


def sapo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, tau_pos: float, tau_neg: float) -> Tensor:
    """Compute −(4/τ) σ(τ(ρ − 1)) A, a soft gate instead of a clip (arXiv:2511.20347).

    τ is `tau_pos` if A > 0, else `tau_neg`.

    >>> log_p = torch.tensor([-1.0])  # ρ = 1: the gate is σ(0) = 1/2
    >>> sapo(log_p, log_p, torch.tensor([1.0]), tau_pos=1.0, tau_neg=1.05).tolist()
    [-2.0]
    """
    tau = torch.where(advantages > 0, tau_pos, tau_neg)
    return -4 / tau * torch.sigmoid(tau * (ratio(log_probs - old_log_probs) - 1)) * advantages


def geo_mean(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, keep: Tensor, *, low: float, high: float
) -> Tensor:
    """Compute −mean(A) exp(mean of clipped log ρ), the same on every token of a sequence.

    log ρ is clipped to [−low, high], but only on the side to which the sign of A moves it (geometric-mean policy
    optimisation, arXiv:2507.20673).

    >>> old, keep = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    >>> theta = torch.tensor([[0.4, -0.4]])  # clipped above to 0.2 where A > 0: mean −0.1
    >>> [round(x, 3) for x in geo_mean(theta, old, torch.ones(1, 2), keep, low=0.2, high=0.2)[0].tolist()]
    [-0.905, -0.905]
    """
    d, sign = log_probs - old_log_probs, torch.sign(advantages)
    # Where A = 0, d may be infinite, and 0 · ∞ is NaN.
    clipped = torch.where(sign == 0, 0, sign * torch.minimum(sign * d, sign * d.clamp(-low, high)))
    per_sequence = -masked_mean(advantages, keep, -1) * ratio(masked_mean(clipped, keep, -1))
    return per_sequence[:, None].expand_as(log_probs)


def dppo(
    loss_type: DppoType,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    low: float,
    high: float,
    cap: float,
) -> Tensor:
    """Compute −sg(min(ρ, cap)) A log π_θ inside the trust region, else 0 (Qi et al., arXiv:2602.04879).

    >>> theta, old = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.4, 0.1]).log()  # moved by 0.1 and by 0.4
    >>> loss = dppo("dppo_tv", theta, old, torch.ones(2), low=0.2, high=0.2, cap=20.0)
    >>> [round(x, 3) for x in loss.tolist()]  # 1.25 log 2, and nothing
    [0.866, -0.0]
    """
    theta = log_probs.detach()
    inside = dppo_inside(loss_type, theta, old_log_probs, advantages, low=low, high=high)
    return torch.where(inside, -ratio(theta - old_log_probs).clamp(max=cap) * advantages * log_probs, 0 * log_probs)


def dppo_inside(
    loss_type: DppoType, theta: Tensor, old: Tensor, advantages: Tensor, *, low: float, high: float
) -> Tensor:
    """Check whether D ≤ high if A > 0, else whether D ≥ −low.

    D is π_θ − π_old (dppo_tv), or the binary KL(π_old‖π_θ) with the sign of that difference (dppo_kl).
    """
    difference = (prob_diff if loss_type == "dppo_tv" else signed_kl)(theta, old)
    return torch.where(advantages > 0, difference <= high, difference >= -low)


def drpo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, epsilon: float) -> Tensor:
    """Compute −A ρ + |A| π_old (ρ − 1)²/(2ε), which turns DPPO's bound on π_θ − π_old into a penalty.

    Its gradient is that of −A ρ times 1 − sign(A)(π_θ − π_old)/ε (arXiv:2606.09821; UniRL, unirl/algorithms/drpo.py).
    DRPO fails at its purpose with ε = 12.5: probabilities differ by less than 1, so that factor stays within 1 ± 0.08.
    If both probabilities are small, nothing bounds ρ.

    >>> theta, old = torch.tensor([0.4]).log(), torch.tensor([0.2]).log()  # ρ = 2: −2 + 0.2/(2·0.5)
    >>> round(drpo(theta, old, torch.ones(1), epsilon=0.5).item(), 4)
    -1.8
    """
    rho = ratio(log_probs - old_log_probs)
    return -advantages * rho + advantages.abs() * old_log_probs.exp() * (rho - 1).square() / (2 * epsilon)


def clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    keep: Tensor,
    *,
    low: float,
    high: float,
    share: float,
    bounds: tuple[float, float],
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute ppo_clip without some random tokens whose covariance is within the bounds (Cui et al., arXiv:2505.22617).

    The number of these tokens is `share` of the kept tokens, at least one. cov = (A − mean A)(log π_θ − mean log π_θ),
    with means over the kept tokens of this mini-batch. A micro-batch has other means, so it would select other tokens.

    >>> theta, advantages = torch.tensor([[-1.0, -3.0]]), torch.tensor([[1.0, -1.0]])  # both covariances are 1
    >>> keep = torch.ones(1, 2, dtype=torch.bool)
    >>> clip_cov(theta, theta, advantages, keep, low=0.2, high=0.2, share=1.0, bounds=(0.5, 2.0)).tolist()
    [[-0.0, 0.0]]
    """
    loss = ppo_clip(log_probs, old_log_probs, advantages, low=low, high=high)
    rho = ratio((log_probs - old_log_probs).detach())
    free = rho * advantages <= rho.clamp(1 - low, 1 + high) * advantages  # tokens that are not clipped already
    cov = covariance(log_probs, advantages, keep)
    candidates = keep & free & (cov > bounds[0]) & (cov < bounds[1])
    random = torch.rand(cov.shape, generator=generator, device=cov.device)
    dropped = _first(torch.where(candidates, random, -torch.inf), keep, share)
    return torch.where(dropped, 0 * loss, loss)


def kl_cov(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, keep: Tensor, *, share: float, coef: float
) -> Tensor:
    """Compute −A ρ, plus coef |log ρ| on the tokens of largest covariance: a `share` of the kept tokens, at least one.

    The covariance is that of `clip_cov`.

    >>> theta, advantages = torch.tensor([[-1.0, -3.0]]), torch.tensor([[1.0, -1.0]])
    >>> kl_cov(theta, theta, advantages, torch.ones(1, 2, dtype=torch.bool), share=0.5, coef=0.1).tolist()  # ρ = 1
    [[-1.0, 1.0]]
    """
    d = log_probs - old_log_probs
    cov = torch.where(keep, covariance(log_probs, advantages, keep), -torch.inf)
    # π_old may be 0, or so small that |log ρ| times a weight is infinite. The ratio is e²⁰ here, too.
    finite = torch.where(d.abs() > LARGEST, d.sign() * SAFETY_BOUND, d)
    return -advantages * ratio(d) + torch.where(_first(cov, keep, share), coef * finite.abs(), 0)


def covariance(log_probs: Tensor, advantages: Tensor, keep: Tensor) -> Tensor:
    """Compute (A − mean A)(log π_θ − mean log π_θ), with means over `keep` and without gradient."""
    theta = log_probs.detach()
    return (advantages - masked_mean(advantages, keep)) * (theta - masked_mean(theta, keep))


def _first(score: Tensor, keep: Tensor, share: float) -> Tensor:
    """Return the ⌊share · kept tokens⌋ positions with the highest scores, at least one, but none with −inf."""
    if not score.numel():
        return keep
    count = (keep.sum() * share).long().clamp(min=1)
    order = score.flatten().argsort(descending=True, stable=True)
    first = torch.arange(score.numel(), device=score.device) < count  # rank < count
    return torch.empty_like(first).scatter(0, order, first).view_as(score) & (score > -torch.inf)


def _clipped(rho: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return torch.maximum(-advantages * rho, -advantages * rho.clamp(1 - low, 1 + high))


def clipped_value(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Compute the value loss ½ max((V − R)², (clip(V, V_old ± clip) − R)²).

    >>> clipped_value(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.0]), clip=0.5).tolist()  # (0.5 − 2)²/2
    [1.125]
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (near - returns).square()) / 2
