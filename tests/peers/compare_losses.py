"""KL penalties and policy losses of a case with their gradients: verl's against ours."""

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from cases import CLAMP, EPSILON, ROUNDING, STEPS, Case, Options, rules_near, weights_near
from counting import Tally
from faults import affected, with_clean_padding
from torch import Tensor
from verl_peer import verl_kl, verl_loss

from rlcorr.config import KL_ESTIMATORS, Aggregation, CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.losses.kl import kl_penalty
from rlcorr.losses.objective import policy_loss
from rlcorr.measuring.moments import MomentTable
from rlcorr.types import TokenBatch

ValueAndGradient = tuple[Tensor, Tensor]


# --- KL penalties ---


def compare_kl(case: Case, tally: Tally) -> None:
    """Every estimator of verl's, value and gradient, on the real tokens with finite log-probs.

    A bfloat16 case is compared with verl in float32: e^-δ − 1 + δ has no digits left in bfloat16.
    """
    usable = case.mask & case.old.isfinite() & case.rollout.isfinite()
    log_probs, ref = case.old[usable], case.rollout[usable]
    wide = torch.promote_types(log_probs.dtype, torch.float32)
    c = (ref.double() - log_probs.double()).clamp(-CLAMP, CLAMP)
    cut = torch.expm1(c) - c > 9.99
    tally.fault("k3 cut off", bool(cut.any()))
    # δ is off by one rounding of |δ|, which e^-δ multiplies; then a handful of operations on numbers of these sizes.
    # Below 1/4 our k3 is a series to the eleventh power: its gradient stops there, 6e-15 short, which float64 shows.
    allowed = 8 * ROUNDING[log_probs.dtype] * (1 + c.abs()) * (1 + c.exp() + c.abs()) + 0.25**11 / math.factorial(11)
    for name in KL_ESTIMATORS:
        got = kl_with_gradient(kl_penalty, log_probs, ref, name)
        want, gradient = (x.double() for x in kl_with_gradient(verl_kl, log_probs.to(wide), ref.to(wide), name))
        if name.removesuffix("+") in ("k3", "low_var_kl"):
            want = torch.where(cut, torch.expm1(c) - c, want)
            gradient = gradient if name.endswith("+") else torch.where(cut, -torch.expm1(c), gradient)
        tally.close("KL values", case, got[0], want, allowed)
        tally.close("KL gradients", case, got[1], gradient, allowed)


def kl_with_gradient(
    penalty: Callable[..., Tensor], log_probs: Tensor, ref: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    leaf = log_probs.detach().requires_grad_()
    value = penalty(leaf, ref, name)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


# --- policy losses ---

VERL_LOSS = {
    "ppo_clip": "vanilla", "dual_clip": "vanilla", "gpg": "gpg", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo",
    "geo_mean": "geo_mean", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl", "clip_cov": "clip_cov", "kl_cov": "kl_cov",
}  # fmt: skip
MODES = get_args(Aggregation)


@dataclass(frozen=True)
class Update:
    """A case in float64 with what a loss needs besides: π_θ, advantages, the loss and its numbers."""

    case: Case
    log_probs: Tensor  # (B, T) log π_θ
    advantages: Tensor  # (B, T)
    correction: CorrectionConfig
    loss: LossConfig

    @property
    def batch(self) -> TokenBatch:
        old, rollout, mask = self.case.old, self.case.rollout, self.case.mask
        return TokenBatch(mask, rollout, old_log_probs=old, advantages=self.advantages)


def compare_losses(case: Case, tally: Tally) -> None:
    """Three losses of the decoupled kind and one of bypass mode, in float64: rounding was compared above."""
    if not case.mask.any() or not case.d.isfinite().all():
        return
    case = with_clean_padding(replace(case, old=case.old.double(), rollout=case.rollout.double()))
    some, noise = random.Random(-case.seed - 1), torch.Generator().manual_seed(case.seed)
    shape = case.mask.shape
    apart = some.choice([1e-3, 0.1, 1.0]) * torch.randn(shape, generator=noise, dtype=torch.float64)
    log_probs = torch.where(case.mask, (case.old + apart).clamp(max=0), 0)
    advantages = torch.randn(shape[0], some.choice([1, shape[1]]), generator=noise, dtype=torch.float64)
    advantages = (advantages * (torch.rand(advantages.shape, generator=noise) > 0.1)).expand(shape)
    for name in some.sample(list(VERL_LOSS), 3):
        loss, denominator = random_loss(some, name), some.choice(["fixed", "kept"])
        correction = replace(case.config, bypass_mode=False, loss_type=name, denominator=denominator)
        compare_decoupled(Update(case, log_probs, advantages, correction, loss), tally)
    options = case.options | {"bypass_mode": True, "loss_type": some.choice(["reinforce", "ppo_clip"])}
    if options["loss_type"] == "ppo_clip":  # verl computes weights for its metrics only, ours refuses them
        options |= {"rollout_is": None, "rollout_is_batch_normalize": False}
    case = replace(case, options=options)
    correction = replace(case.config, denominator="kept")
    compare_bypass(Update(case, log_probs, advantages, correction, random_loss(some, "reinforce")), tally)


def random_loss(some: random.Random, name: str) -> LossConfig:
    return LossConfig(
        clip_ratio_low=some.uniform(0.05, 0.5),
        clip_ratio_high=some.uniform(0.05, 0.5),
        numbers={
            # verl always clips twice
            "clip_ratio_c": 1e9 if name in ("ppo_clip", "reinforce") else some.uniform(1.2, 5),
            "dppo_ratio_cap": some.choice([1.5, 20.0]),
            "tau_pos": some.uniform(0.5, 2),
            "tau_neg": some.uniform(0.5, 2),
            "clip_cov_ratio": 1.0,  # every candidate, because verl draws them from torch's global generator
            "clip_cov_lb": some.uniform(-0.5, 0.5),
            "clip_cov_ub": some.uniform(0.5, 5),
            "kl_cov_ratio": some.choice([2e-4, 0.05, 1.0]),
            "ppo_kl_coef": some.choice([0.1, 1.0]),
        },
        # verl's sapo takes this mode whatever is asked for, and its geo_mean is a mean over sequences.
        loss_agg_mode="seq-mean-token-mean" if name in ("sapo", "geo_mean") else some.choice(MODES),
        loss_scale_factor=some.choice([None, 64.0]),
    )


def compare_decoupled(update: Update, tally: Tally) -> None:
    """With the weights and kept tokens of our correction, which were compared above."""
    case, correction, loss = update.case, update.correction, update.loss
    name = correction.loss_type
    result = correct(update.batch, correction)
    kept = result.keep_mask
    if name == "kl_cov":
        tied = ties(update, kept)
        tally.fault("kl_cov of equal covariances", tied)
        if tied:
            return
    if loss.loss_agg_mode == "seq-mean-token-mean" and not kept.equal(case.mask):
        correction = replace(correction, denominator="kept")  # verl divides a sequence by its kept tokens only
    weights = None if correction.rollout_is is None else result.weights
    if name == "geo_mean" and weights is not None:  # verl adds 1e-10 before the logarithm, ours is at least 1e-10
        weights = weights.clamp(min=1e-10) - 1e-10
    numbers = actor_numbers(update, correction.denominator)
    verl = functools.partial(verl_loss, VERL_LOSS[name], case.old)
    given = (update.advantages, kept, weights)
    got, measured = with_gradient(update, lambda x: policy_loss(x, update.batch, result, correction, loss))
    want, clip_metrics = with_gradient(update, lambda x: verl(x, *given, **numbers))
    if not kept.any() and name != "geo_mean":
        want = nothing(want, tally)
    if name == "geo_mean":
        rows = max(int(kept.any(-1).sum()), 1)
        tally.fault("geo_mean of empty rows", rows < len(kept))
        want = want[0] * len(kept) / rows, want[1] * len(kept) / rows
    compare_loss(update, kept, result.weights, got, want, tally)
    if VERL_LOSS[name] == "vanilla":
        compare_loss_metrics(update, measured, clip_metrics, tally)
    if name.startswith("dppo") and "dppo_ratio_cap" not in loss.numbers:
        del numbers["clip_ratio_c"]
        unset, _ = with_gradient(update, lambda x: verl(x, *given, **numbers))
        tally.fault("dppo cap", not torch.allclose(unset[1], want[1]))


def nothing(want: ValueAndGradient, tally: Tally) -> ValueAndGradient:
    tally.fault("nothing kept", bool(want[0].isnan()))
    return torch.zeros_like(want[0]), torch.zeros_like(want[1])


def compare_loss_metrics(update: Update, measured: MomentTable, clip_metrics: dict[str, float], tally: Tally) -> None:
    """Means over the kept tokens; of numbers up to the largest |log ρ|, or of flags."""
    largest = 1 + (update.log_probs - update.case.old).abs().max().item()
    for key, want in clip_metrics.items():
        if key == "actor/pg_clipfrac_lower" and update.correction.loss_type != "dual_clip":
            continue  # ppo_clip has no second clip
        count, total = measured.table[measured.names.index(key)][:2].tolist()
        got = total / max(count, 1)
        same = abs(got - want) <= STEPS * EPSILON * largest
        tally.check("loss metrics", update.case, same, f"{key} got {got:.9g}, verl {want:.9g}")


def compare_bypass(update: Update, tally: Tally) -> None:
    """π_θ against π_rollout, weights and rejection within the loss."""
    case, correction, loss = update.case, update.correction, update.loss
    inner = replace(case, old=update.log_probs)  # verl corrects π_θ/π_rollout
    close = rules_near(inner).any() or weights_near(inner).any()
    normalised_early = correction.rollout_is_batch_normalize and correction.rollout_rs
    if close or normalised_early or "every weight zero" in affected(inner) or "k1 clamped in sums" in affected(inner):
        tally.left_out["loss values"] += 1
        tally.left_out["loss gradients"] += 1
        return
    result = correct(update.batch.replace(old_log_probs=update.log_probs), correction)
    got, _ = with_gradient(update, lambda x: policy_loss(x, update.batch, result, correction, loss))
    numbers = actor_numbers(update, "kept") | {"policy_loss": {"rollout_correction": case.options}}
    verl = functools.partial(verl_loss, "bypass_mode", case.rollout, **numbers)
    want, _ = with_gradient(update, lambda x: verl(x, update.advantages, case.mask))
    if not result.keep_mask.any():
        want = nothing(want, tally)
    compare_loss(update, result.keep_mask, result.weights, got, want, tally)


def with_gradient(update: Update, value: Callable[[Tensor], tuple[Tensor, Any]]) -> tuple[ValueAndGradient, Any]:
    """Value and gradient in π_θ's log-probs, and what the loss has measured besides."""
    leaf = update.log_probs.clone().requires_grad_()
    total, measured = value(leaf)
    return (total.detach(), torch.autograd.grad(total, leaf)[0]), measured


def actor_numbers(update: Update, denominator: str) -> Options:
    """Fields of verl's actor. Its denominators count the mask that it is given, unless it is told a total."""
    loss, mask = update.loss, update.case.mask
    totals: Options = {"loss_scale_factor": loss.loss_scale_factor}
    if denominator == "fixed":
        totals |= {"batch_num_tokens": mask.sum(), "global_batch_size": mask.any(-1).sum()}
    nested = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
    cap = "dppo_ratio_cap" if update.correction.loss_type.startswith("dppo") else "clip_ratio_c"
    return {key: getattr(loss, key) for key in ("clip_ratio_low", "clip_ratio_high", "loss_agg_mode")} | {
        **{key: loss.number(key) for key in ("tau_pos", "tau_neg")},
        "clip_ratio_c": loss.number(cap),
        "global_batch_info": totals,
        "policy_loss": {key: loss.number(key) for key in nested},
    }


def compare_loss(
    update: Update, kept: Tensor, weights: Tensor, got: ValueAndGradient, want: ValueAndGradient, tally: Tally
) -> None:
    """verl's 1e-8 in the counts is the largest error: relative in a gradient, relative to Σ|L| in the value."""
    loss, correction = update.loss, update.correction
    told = {"loss": correction.loss_type, "denominator": correction.denominator, "agg": loss.loss_agg_mode}
    case = replace(update.case, options=update.case.options | told)
    d = update.log_probs - (update.case.rollout if correction.bypass_mode else update.case.old)
    sizes = weights * update.advantages.abs() * (1 + d.exp()) * (1 + update.log_probs.abs()) + d.abs()
    count = int(kept.sum()) if loss.loss_agg_mode == "token-mean" else 1
    scale = torch.where(kept, sizes, 0).sum().item() / max(count, 1)
    tally.close("loss values", case, got[0], want[0], STEPS * EPSILON * (scale + want[0].abs()))
    tally.close("loss gradients", case, got[1], want[1], STEPS * EPSILON * want[1].abs() + 1e-13 * scale)


def ties(update: Update, kept: Tensor) -> bool:
    """Whether kl_cov's share ends amid equal covariances: verl then takes any of them, ours the first."""
    a, log_p = update.advantages[kept], update.log_probs[kept]
    if not len(a):
        return False
    cov = ((a - a.mean()) * (log_p - log_p.mean())).sort(descending=True).values
    last = max(int(len(cov) * update.loss.number("kl_cov_ratio")), 1) - 1
    return last + 1 < len(cov) and bool(cov[last] - cov[last + 1] <= 1e-12 * (1 + cov.abs().max()))
