"""The policy losses, one record each in `LOSSES`, and those that depend on the whole answer.

A new loss is its name and its numbers in `config`, and a function with a record here. Shapes, signs and gradients are
as in `per_token`; sg is stop-gradient.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlcorr.config import LossConfig, LossType
from rlcorr.divergences import prefix_gap
from rlcorr.losses import per_token
from rlcorr.losses.per_token import dppo_inside, ppo_clip
from rlcorr.masked import masked_mean, masked_sum
from rlcorr.ratios import SAFETY_BOUND, ratio

SMALLEST_LOG_WEIGHT = -18.420680743952367
"""log 1e-8. TRL clamps the product of the ratios to at least 1e-8."""


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
    """Compute FIPO's loss: ppo_clip times sg(exp F), clamped to [1 − clip₁, 1 + clip₂].

    F_t = Σ_{j ≥ t} 2^{−(j − t)/half_life} log ρ_j, over kept tokens. If A < 0 and ρ > `safety`, the factor is also
    clamped to [0.8, 1]. Source: arXiv:2603.19835; ms-swift 4.6.0 (half-life 32, clip 1 to 1.2, safety 4), whose option
    delta, off by default, is left out. FIPO fails if engine and trainer differ: if all later tokens drift with the same
    sign, FIPO takes this for their influence, and every early token gets the upper bound.

    >>> theta, keep = torch.tensor([[1.0, 1.1]]).log(), torch.ones(1, 2, dtype=torch.bool)  # F₁ = log(1.1)/2
    >>> numbers = {"low": 0.2, "high": 0.2, "half_life": 1.0, "clip": (0.0, 0.2), "safety": 4.0}
    >>> [round(x, 3) for x in fipo(theta, torch.zeros(1, 2), torch.ones(1, 2), keep, **numbers)[0].tolist()]
    [-1.049, -1.21]
    """
    d = (log_probs - old_log_probs).detach()
    weight = ratio(discounted(torch.where(keep, d, 0), 0.5 ** (1 / half_life))).clamp(1 - clip[0], 1 + clip[1])
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
    """Check for each token whether `prefix_gap` ≤ δ, or the update moves π_θ back towards π_old."""
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
    """
    reach = 1
    while reach < x.shape[-1]:
        later = torch.nn.functional.pad(x[..., reach:], (0, reach))
        x, reach = x + gamma**reach * later, 2 * reach
    return x


class Inputs(NamedTuple):
    """The inputs of a policy loss, (B, T) each. Only log π_θ has a graph; old is log π_old."""

    log_probs: Tensor
    old: Tensor
    advantages: Tensor
    keep: Tensor

    def log_ratio(self) -> Tensor:
        """Return log ρ without a graph."""
        return self.log_probs.detach() - self.old


Of = Callable[[Inputs, LossConfig, torch.Generator | None], Tensor]
Cut = Callable[[Inputs, LossConfig], Tensor]


@dataclass(frozen=True)
class Loss:
    """A policy loss, and what else depends on its name."""

    of: Of
    """Loss per token, (B, T)."""
    title: str = ""
    """Its name in the titles of presets; empty for losses that they do not name."""
    alone: bool = False
    """True if the gradient at a token depends on that token alone, which score centering needs."""
    whole_batch: bool = False
    """True if the loss of a token depends on all tokens of the mini-batch: it has no parts to add up."""
    cut: Cut | None = None
    """Tokens whose gradient the loss's own clip or mask cuts, for the metric actor/pg_clipfrac."""
    cut_again: Cut | None = None
    """Tokens with A < 0 that a second clip cuts, for actor/pg_clipfrac_lower."""


def _widths(loss: LossConfig) -> dict[str, float]:
    return {"low": loss.clip_ratio_low, "high": loss.clip_ratio_high}


def _beyond(rho: Tensor, x: Inputs, loss: LossConfig) -> Tensor:
    """Check which ratios PPO's clip cuts: above its range if A > 0, below it if A < 0."""
    above, below = rho > 1 + loss.clip_ratio_high, rho < 1 - loss.clip_ratio_low
    return ((x.advantages > 0) & above) | ((x.advantages < 0) & below)


def _ppo_cut(x: Inputs, loss: LossConfig) -> Tensor:
    return _beyond(ratio(x.log_ratio()), x, loss)


def _gspo_cut(x: Inputs, loss: LossConfig) -> Tensor:
    return _beyond(ratio(masked_mean(x.log_ratio(), x.keep, -1)[:, None]), x, loss)


def _cispo_cut(x: Inputs, loss: LossConfig) -> Tensor:
    rho = ratio(x.log_ratio())
    return (rho > 1 + loss.clip_ratio_high) | (rho < 1 - loss.clip_ratio_low)


def _outside_log_range(x: Inputs, loss: LossConfig) -> Tensor:
    return (x.log_ratio() > loss.clip_ratio_high) | (x.log_ratio() < -loss.clip_ratio_low)


def _with(function: Callable[..., Tensor], inputs: int = 4, *, clips: bool = False, **names: Any) -> Of:
    """Return a policy loss: a function of the first inputs, of the widths of the clip if it `clips`, and of numbers."""

    def of(x: Inputs, loss: LossConfig, _: torch.Generator | None) -> Tensor:
        single = {name: loss.number(key) for name, key in names.items() if isinstance(key, str)}
        pairs = {name: tuple(map(loss.number, keys)) for name, keys in names.items() if not isinstance(keys, str)}
        return function(*x[:inputs], **(_widths(loss) if clips else {}), **single, **pairs)

    return of


def _dppo(name: per_token.DppoType, title: str) -> Loss:
    def outside(x: Inputs, loss: LossConfig) -> Tensor:
        return ~dppo_inside(name, x.log_probs.detach(), x.old, x.advantages, **_widths(loss))

    of = _with(functools.partial(per_token.dppo, name), 3, clips=True, cap="dppo_ratio_cap")
    return Loss(of, title, alone=True, cut=outside)


def _clip_cov(x: Inputs, loss: LossConfig, generator: torch.Generator | None) -> Tensor:
    share, bounds = loss.number("clip_cov_ratio"), (loss.number("clip_cov_lb"), loss.number("clip_cov_ub"))
    return per_token.clip_cov(*x, **_widths(loss), share=share, bounds=bounds, generator=generator)


_REINFORCE = Loss(lambda x, loss, _: per_token.reinforce(x.log_probs, x.advantages), alone=True)

LOSSES: dict[LossType, Loss] = {
    "ppo_clip": Loss(_with(ppo_clip, 3, clips=True), alone=True, cut=_ppo_cut),
    "dual_clip": Loss(
        _with(per_token.dual_clip, 3, clips=True, c="clip_ratio_c"),
        alone=True,
        cut=_ppo_cut,
        cut_again=lambda x, loss: (x.advantages < 0) & (ratio(x.log_ratio()) > loss.number("clip_ratio_c")),
    ),
    "reinforce": _REINFORCE,
    "gpg": _REINFORCE,
    "gspo": Loss(_with(per_token.gspo, clips=True), cut=_gspo_cut),
    "cispo": Loss(_with(per_token.cispo, 3, clips=True), alone=True, cut=_cispo_cut),
    "sapo": Loss(_with(per_token.sapo, 3, tau_pos="tau_pos", tau_neg="tau_neg")),
    "geo_mean": Loss(
        _with(per_token.geo_mean, clips=True),
        cut=lambda x, loss: (x.advantages > 0) & _outside_log_range(x, loss),
        cut_again=lambda x, loss: (x.advantages < 0) & _outside_log_range(x, loss),
    ),
    "dppo_tv": _dppo("dppo_tv", "DPPO by total variation"),
    "dppo_kl": _dppo("dppo_kl", "DPPO by KL"),
    "clip_cov": Loss(_clip_cov, whole_batch=True, cut=_ppo_cut),
    "kl_cov": Loss(_with(per_token.kl_cov, share="kl_cov_ratio", coef="ppo_kl_coef"), whole_batch=True),
    "drpo": Loss(_with(per_token.drpo, 3, epsilon="drpo_epsilon"), "DRPO"),
    "vespo": Loss(
        _with(vespo, positive=("vespo_k_pos", "vespo_lambda_pos"), negative=("vespo_k_neg", "vespo_lambda_neg")),
        "VESPO",
    ),
    "fipo": Loss(
        _with(
            fipo,
            clips=True,
            half_life="fipo_decay_rate",
            clip=("fipo_clip_low", "fipo_clip_range"),
            safety="fipo_safety_threshold",
        ),
        "FIPO",
    ),
    "cppo": Loss(_with(cppo, delta="cppo_delta", last="cppo_w_min", budget="cppo_delta_b"), "CPPO"),
    "ctpo": Loss(_with(ctpo, low="ctpo_clip_low", high="ctpo_clip_high", c="ctpo_clip_c", power="ctpo_power"), "CTPO"),
}
"""Name of a loss → its record."""
