"""Policy losses per token that depend on the whole answer: on its product of ratios, on later or on earlier tokens.

Shapes, signs and gradients are as in `per_token`; sg is stop-gradient.
"""

from typing import Literal

import torch
from torch import Tensor

from rlcorr.config import LossConfig
from rlcorr.losses.per_token import ppo_clip
from rlcorr.masked import masked_sum
from rlcorr.prefix_gap import prefix_gap
from rlcorr.ratios import SAFETY_BOUND, ratio

SMALLEST_LOG_WEIGHT = -18.420680743952367
"""log 1e-8. TRL clamps the product of the ratios to at least 1e-8."""


def answer_losses(
    loss_type: Literal["vespo", "fipo", "cppo", "ctpo"],
    loss: LossConfig,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    keep: Tensor,
) -> Tensor:
    """Compute the losses per token of this name, with the hyperparameters in `loss`.

    >>> keep, theta = torch.ones(1, 1, dtype=torch.bool), torch.tensor([[-1.0]])  # ρ = 1 and A = 2
    >>> answer_losses("fipo", LossConfig(), theta, theta, torch.tensor([[2.0]]), keep).tolist()
    [[-2.0]]
    """
    inputs = (log_probs, old_log_probs, advantages, keep)
    if loss_type == "vespo":
        positive, negative = (loss.vespo_k_pos, loss.vespo_lambda_pos), (loss.vespo_k_neg, loss.vespo_lambda_neg)
        return vespo(*inputs, positive=positive, negative=negative)
    if loss_type == "cppo":
        return cppo(*inputs, delta=loss.cppo_delta, last=loss.cppo_w_min, budget=loss.cppo_delta_b)
    if loss_type == "ctpo":
        bounds = {"low": loss.ctpo_clip_low, "high": loss.ctpo_clip_high, "c": loss.ctpo_clip_c}
        return ctpo(*inputs, **bounds, power=loss.ctpo_power)
    low, high = loss.clip_ratio_low, loss.clip_ratio_high
    clip = (1.0 if loss.fipo_clip_high_only else 1 - loss.fipo_clip_range, 1 + loss.fipo_clip_range)
    half_life, safety = loss.fipo_decay_rate, loss.fipo_safety_threshold
    return fipo(*inputs, low=low, high=high, half_life=half_life, clip=clip, safety=safety)


def vespo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    keep: Tensor,
    *,
    positive: tuple[float, float],
    negative: tuple[float, float],
) -> Tensor:
    """Compute VESPO's loss −sg(φ(W)) A log π_θ with φ(W) = W^k e^{λ(1 − W)}.

    W is the product of the answer's ρ, clamped to [1e-8, e²⁰]. (k, λ) is `positive` if A ≥ 0, else `negative`; TRL
    1.16.0 (loss_type vespo) uses (2, 3) and (3, 2). VESPO fails on long answers: W is far from 1, so φ is near 0 and
    almost no token is trained on.

    >>> old, keep = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    >>> theta = torch.tensor([[0.5, 1.0]]).log()  # W = 0.5: φ = 0.25 e^{1.5}
    >>> [round(x, 3) for x in vespo(theta, old, torch.ones(1, 2), keep, positive=(2, 3), negative=(3, 2))[0].tolist()]
    [0.777, -0.0]
    """
    d = (log_probs - old_log_probs).detach().clamp(-SAFETY_BOUND, SAFETY_BOUND)
    log_w = masked_sum(d, keep, -1)[:, None].clamp(SMALLEST_LOG_WEIGHT, SAFETY_BOUND)
    k, decay = (torch.where(advantages >= 0, *pair) for pair in zip(positive, negative, strict=True))
    return -(k * log_w + decay * (1 - log_w.exp())).exp() * advantages * log_probs


def fipo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    keep: Tensor,
    *,
    low: float,
    high: float,
    half_life: float,
    clip: tuple[float, float],
    safety: float,
) -> Tensor:
    """Compute FIPO's loss: ppo_clip times sg(clip(exp F)), F_t = Σ_{j ≥ t} 2^{−(j − t)/half_life} log ρ_j.

    The sum is over kept tokens. If A < 0 and ρ > `safety`, the factor is also clamped to [0.8, 1]. Source:
    arXiv:2603.19835; ms-swift 4.6.0 (half-life 32, clip 1 to 1.2, safety 4), whose option delta, off by default, is
    left out. FIPO fails if engine and trainer differ: if all later tokens drift with the same sign, FIPO takes this for
    their influence, and every early token gets the upper bound.

    >>> theta, keep = torch.tensor([[1.0, 1.1]]).log(), torch.ones(1, 2, dtype=torch.bool)  # F₁ = log(1.1)/2
    >>> numbers = {"low": 0.2, "high": 0.2, "half_life": 1.0, "clip": (1.0, 1.2), "safety": 4.0}
    >>> [round(x, 3) for x in fipo(theta, torch.zeros(1, 2), torch.ones(1, 2), keep, **numbers)[0].tolist()]
    [-1.049, -1.21]
    """
    d = (log_probs - old_log_probs).detach()
    weight = ratio(discounted(torch.where(keep, d, 0), 0.5 ** (1 / half_life))).clamp(*clip)
    far = (advantages < 0) & (ratio(d) > safety)
    weight = torch.where(far, weight.clamp(0.8, 1), weight)
    return weight * ppo_clip(log_probs, old_log_probs, advantages, low=low, high=high)


def cppo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    keep: Tensor,
    *,
    delta: float,
    last: float,
    budget: float,
) -> Tensor:
    """Compute CPPO's loss: −A ρ on the tokens of `cppo_inside`, else 0.

    Source: arXiv:2606.10968; UniRL, unirl/algorithms/cppo.py. CPPO fails if the first few tokens of an answer have a
    large gap: they use up the budget, and the rest of the answer is dropped.

    >>> theta, old = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.45, 0.2]]).log()
    >>> keep = torch.ones(1, 2, dtype=torch.bool)
    >>> loss = cppo(theta, old, torch.ones(1, 2), keep, delta=0.2, last=0.8, budget=0.02)
    >>> [round(x, 3) for x in loss[0].tolist()]  # 0.8 · 0.3 is more than 0.2 + 0.04 − 0.05
    [-1.111, 0.0]
    """
    inside = cppo_inside(log_probs.detach(), old_log_probs, advantages, keep, delta=delta, last=last, budget=budget)
    rho = ratio(log_probs - old_log_probs)
    return torch.where(inside, -advantages * rho, 0 * rho)


def cppo_inside(
    theta: Tensor, old: Tensor, advantages: Tensor, keep: Tensor, *, delta: float, last: float, budget: float
) -> Tensor:
    """Check for each token whether `prefix_gap` ≤ δ, or the update moves π_θ back towards π_old.

    >>> theta, old = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.2]]).log()  # 0.3 and 0.24, beyond δ = 0.2
    >>> keep = torch.ones(1, 2, dtype=torch.bool)
    >>> cppo_inside(theta, old, torch.tensor([[1.0, -1.0]]), keep, delta=0.2, last=0.8, budget=0.02).tolist()
    [[False, True]]
    """
    gap = prefix_gap(theta, old, keep, last=last, budget=budget)
    return (gap <= delta) | (advantages * (theta - old) <= 0)


LARGEST_LOG_PRODUCT = 10.0
"""CTPO's code clamps the log of the product to at most 10."""


def ctpo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    keep: Tensor,
    *,
    low: float,
    high: float,
    c: float,
    power: float,
) -> Tensor:
    """Compute CTPO's loss: PPO's clip of R_t = Π_{j ≤ t} ρ_j, with bounds that grow with the position t.

    The loss is max(−A R, −A clip(R, e^{−low s}, e^{high s})) with s = t^power, limited to |A| e^{c s} if A < 0. Only
    kept tokens enter the product and count as positions. R has the gradient R ∇log π_θ of the token itself: the factors
    of earlier tokens are constant.

    Source: arXiv:2605.07331 (without the limit); github.com/horizon-llm/CTPO, verl/trainer/ppo/core_algos.py, loss
    cum-token-cumprod-la. CTPO fails if engine and trainer differ by a bias: then log R grows like t, but its bounds
    like √t, so the late tokens of a long answer are clipped.

    >>> theta, keep = torch.tensor([[1.02, 1.2]]).log(), torch.ones(1, 2, dtype=torch.bool)  # R = 1.02 and 1.224
    >>> numbers = {"low": 0.025, "high": 0.05, "c": 0.05, "power": 0.5}
    >>> [round(x, 3) for x in ctpo(theta, torch.zeros(1, 2), torch.ones(1, 2), keep, **numbers)[0].tolist()]
    [-1.02, -1.073]
    """
    d = torch.where(keep, (log_probs - old_log_probs).detach().clamp(-SAFETY_BOUND, SAFETY_BOUND), 0)
    log_product = (d.cumsum(-1) + log_probs - log_probs.detach()).clamp(max=LARGEST_LOG_PRODUCT)
    scale = keep.cumsum(-1).clamp(min=1).to(d.dtype) ** power
    clipped = torch.maximum(torch.minimum(log_product, high * scale), -low * scale)
    loss = torch.maximum(-advantages * log_product.exp(), -advantages * clipped.exp())
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * ratio(c * scale)), loss)


def discounted(x: Tensor, gamma: float) -> Tensor:
    """Compute Σ_{j ≥ t} γ^{j−t} x_j along the last dimension.

    This takes log₂ T passes. Each pass doubles the number of terms in every sum.

    >>> discounted(torch.tensor([1.0, 0.0, 4.0]), 0.5).tolist()
    [2.0, 2.0, 4.0]
    """
    reach = 1
    while reach < x.shape[-1]:
        later = torch.nn.functional.pad(x[..., reach:], (0, reach))
        x, reach = x + gamma**reach * later, 2 * reach
    return x
