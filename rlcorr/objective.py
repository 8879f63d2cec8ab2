"""From losses per token to the one number that is differentiated: dispatch, weights, aggregation, KL terms."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr import losses
from rlcorr.config import Aggregation, CorrectionConfig, Denominator, LossConfig, LossType
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.kl import kl_penalty
from rlcorr.losses_of_answers import answer_losses
from rlcorr.masked import masked_mean, masked_sum, moments, shares, tally
from rlcorr.quantities import Quantity
from rlcorr.ratios import ratio
from rlcorr.types import CorrectionResult, Measured, Moments, TokenBatch


def policy_loss(
    log_probs: Tensor,
    batch: TokenBatch,
    result: CorrectionResult,
    correction: CorrectionConfig,
    loss: LossConfig,
    *,
    tokens: float | None = None,
    sequences: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Measured]:
    """The loss of one mini- or micro-batch, and its metrics. Needs advantages.

    decoupled  w(π_old/π_rollout) · loss(π_θ/π_old); weights and rejection from `result`, fixed before the update
    bypass     w · loss(π_θ/π_rollout); weights and rejection follow π_θ/π_rollout, `result` is not read

    plus kl_loss_coef · KL(π_θ‖π_ref), aggregated like the loss, and rollout_kl_loss_coef · KL(π_θ‖π_rollout), the mean
    over sequences of their mean; both on the kept tokens. Weights multiply after the clip and carry no gradient.
    `tokens` and `sequences` are the totals over all micro-batches and ranks, whose losses then sum to the loss of the
    whole (`aggregate`); in bypass mode batch normalisation still sees one micro-batch only.

    >>> mask = torch.tensor([[True, True, True]])
    >>> batch = TokenBatch(mask, torch.zeros(1, 3), old_log_probs=torch.zeros(1, 3), advantages=torch.ones(1, 3))
    >>> result = correct(batch, CorrectionConfig())
    >>> theta = torch.zeros(1, 3, requires_grad=True)  # ρ = 1 everywhere
    >>> value, measured = policy_loss(theta, batch, result, CorrectionConfig(), LossConfig())
    >>> value.item()
    -1.0
    """
    parts = _loss(log_probs, batch, result, correction, loss, tokens, sequences, generator)
    return parts.value, Measured.of(_measured(parts, batch.response_mask, correction, loss, tokens, sequences))


@dataclass(frozen=True)
class _Loss:
    """The number that is differentiated, and what it is made of: 0 outside `keep`."""

    value: Tensor
    pg: Tensor  # () without the KL terms
    kl: Tensor | None  # (B, T) against the reference, and against the engine
    rollout_kl: Tensor | None
    log_probs: Tensor  # (B, T), with their graph
    old: Tensor
    advantages: Tensor
    keep: Tensor


def _loss(
    log_probs: Tensor,
    batch: TokenBatch,
    result: CorrectionResult,
    correction: CorrectionConfig,
    loss: LossConfig,
    tokens: float | None,
    sequences: float | None,
    generator: torch.Generator | None,
) -> _Loss:
    if batch.advantages is None:
        raise UsageError("the policy loss needs advantages; the batch has none.")
    mask = batch.response_mask
    if correction.bypass_mode:
        result = correct(batch.replace(old_log_probs=log_probs.detach()), correction)
    keep = result.keep_mask
    old = batch.rollout_log_probs if correction.bypass_mode else batch.old_log_probs
    if old is None:
        raise UsageError("the policy loss needs old_log_probs, or bypass_mode=True; the batch has none.")
    theta = torch.where(keep, log_probs, 0)
    old, advantages, weights = (neutral(x, keep) for x in (old, batch.advantages, result.weights))
    per_token = token_losses(correction, loss, theta, old, advantages, keep, generator)
    if correction.loss_type == "geo_mean":
        weights = masked_mean(weights.clamp(min=1e-10).log(), keep, -1).exp()[:, None]

    def total(x: Tensor, mode: Aggregation) -> Tensor:
        scale = loss.loss_scale_factor
        return aggregate(x, keep, mask, mode, correction.denominator, tokens, sequences, scale)

    value = pg = total(per_token * weights, loss.loss_agg_mode)
    kl = rollout_kl = None
    if loss.use_kl_loss:
        if batch.ref_log_probs is None:
            raise UsageError("use_kl_loss needs ref_log_probs; the batch has none.")
        kl = kl_penalty(theta, neutral(batch.ref_log_probs, keep), loss.kl_loss_type)
        value = value + loss.kl_loss_coef * total(kl, loss.loss_agg_mode)
    if loss.use_rollout_kl_loss:
        rollout_kl = kl_penalty(theta, neutral(batch.rollout_log_probs, keep), loss.rollout_kl_estimator_type)
        value = value + loss.rollout_kl_loss_coef * total(rollout_kl, "seq-mean-token-mean")
    return _Loss(value, pg, kl, rollout_kl, theta, old, advantages, keep)


def score_coefficients(
    log_probs: Tensor,
    batch: TokenBatch,
    result: CorrectionResult,
    correction: CorrectionConfig,
    loss: LossConfig,
    *,
    tokens: float | None = None,
    sequences: float | None = None,
) -> Tensor:
    """c (B, T) with −∇loss = Σ c ∇ log π_θ over all tokens: what every loss comes down to. Arguments: `policy_loss`.

    >>> mask = torch.tensor([[True, True, True]])
    >>> batch = TokenBatch(mask, torch.zeros(1, 3), old_log_probs=torch.zeros(1, 3), advantages=torch.ones(1, 3))
    >>> result = correct(batch, CorrectionConfig())
    >>> coefficients = score_coefficients(torch.zeros(1, 3), batch, result, CorrectionConfig(), LossConfig())
    >>> [round(c, 3) for c in coefficients[0].tolist()]  # A/N on the policy that sampled
    [0.333, 0.333, 0.333]
    """
    leaf = log_probs.detach().requires_grad_()
    parts = _loss(leaf, batch, result, correction, loss, tokens, sequences, None)
    return -torch.autograd.grad(parts.value, leaf)[0]


def neutral(x: Tensor, keep: Tensor) -> Tensor:
    """x without gradient, and 0 outside `keep`, where it may hold anything.

    >>> neutral(torch.tensor([1.0, torch.nan]), torch.tensor([True, False])).tolist()
    [1.0, 0.0]
    """
    return torch.where(keep, x.detach(), 0)


def token_losses(
    correction: CorrectionConfig,
    loss: LossConfig,
    log_probs: Tensor,
    old: Tensor,
    advantages: Tensor,
    keep: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss that `correction.loss_type` names, with the numbers of `loss`.

    >>> log_p, keep = torch.tensor([[-1.0]]), torch.ones(1, 1, dtype=torch.bool)
    >>> gpg = CorrectionConfig(loss_type="gpg")
    >>> token_losses(gpg, LossConfig(), log_p, log_p, torch.tensor([[2.0]]), keep).tolist()
    [[2.0]]
    """
    low, high, given = loss.clip_ratio_low, loss.clip_ratio_high, (log_probs, old, advantages)
    match correction.loss_type:
        case "reinforce" | "gpg":
            return losses.reinforce(log_probs, advantages)
        case "ppo_clip" | "cispo" as name:
            return {"ppo_clip": losses.ppo_clip, "cispo": losses.cispo}[name](*given, low=low, high=high)
        case "dual_clip":
            return losses.dual_clip(*given, low=low, high=high, c=loss.clip_ratio_c)
        case "gspo" | "geo_mean" as name:
            return {"gspo": losses.gspo, "geo_mean": losses.geo_mean}[name](*given, keep, low=low, high=high)
        case "sapo":
            return losses.sapo(*given, tau_pos=loss.tau_pos, tau_neg=loss.tau_neg)
        case "dppo_tv" | "dppo_kl":
            return losses.dppo(correction.loss_type, *given, low=low, high=high, cap=loss.dppo_ratio_cap)
        case "drpo":
            return losses.drpo(*given, epsilon=loss.drpo_epsilon)
        case "vespo" | "fipo" | "cppo":
            return answer_losses(correction.loss_type, loss, *given, keep)
        case "clip_cov":
            share, bounds = loss.clip_cov_ratio, (loss.clip_cov_lb, loss.clip_cov_ub)
            return losses.clip_cov(*given, keep, low=low, high=high, share=share, bounds=bounds, generator=generator)
        case "kl_cov":
            return losses.kl_cov(*given, keep, share=loss.kl_cov_ratio, coef=loss.ppo_kl_coef)


def aggregate(
    loss: Tensor,
    keep: Tensor,
    mask: Tensor,
    mode: Aggregation = "token-mean",
    denominator: Denominator = "fixed",
    tokens: float | None = None,
    sequences: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """Σ over the kept tokens, divided as verl's `agg_loss` does.

    token-mean               Σ_bt L / N              N tokens
    token-sum                Σ_bt L
    seq-mean-token-sum       Σ_b (Σ_t L) / S         S sequences
    seq-mean-token-mean      Σ_b (Σ_t L / n_b) / S   n_b tokens of the sequence
    seq-mean-token-sum-norm  Σ_b (Σ_t L) / S / scale (the number of columns, if None)

    N, S and n_b count every response token (fixed) or the kept ones (kept); N and S are replaced by `tokens` and
    `sequences`, the totals of a batch of which this is a part, so that the parts sum to the whole. Sequences without a
    counted token do not count. Nothing kept: 0, with a graph.

    >>> loss, mask = torch.tensor([[3.0, 1.0], [2.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool)
    >>> keep = torch.tensor([[True, False], [True, False]])
    >>> aggregate(loss, keep, mask).item(), aggregate(loss, keep, mask, denominator="kept").item()  # 5/4 and 5/2
    (1.25, 2.5)
    """
    counted = mask if denominator == "fixed" else keep
    if mode in ("token-mean", "token-sum"):
        total = masked_sum(loss, keep)
        return total if mode == "token-sum" else total / _at_least_one(counted.sum() if tokens is None else tokens)
    rows = masked_sum(loss, keep, -1)
    if mode == "seq-mean-token-mean":
        rows = rows / tally(counted).clamp(min=1)
    if mode == "seq-mean-token-sum-norm":
        rows = rows / (max(loss.shape[-1], 1) if scale is None else scale)
    return rows.sum() / _at_least_one(counted.any(-1).sum() if sequences is None else sequences)


def _at_least_one(count: Tensor | float) -> Tensor | float:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def lr_factor(keep: Tensor, mask: Tensor, correction: CorrectionConfig, loss: LossConfig) -> Tensor:
    """What rejection multiplies the learning rate by: aggregate(1 over kept) / aggregate(1 over all).

    Token modes with a fixed denominator: kept tokens / all tokens; with a kept one: 1, or 0 if nothing is kept.

    >>> mask, keep = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[True, False, False, False]])
    >>> lr_factor(keep, mask, CorrectionConfig(), LossConfig()).item()
    0.25
    """
    ones = torch.ones(keep.shape, device=keep.device)
    mode, scale = loss.loss_agg_mode, loss.loss_scale_factor
    whole = aggregate(ones, mask, mask, mode, scale=scale)
    part = aggregate(ones, keep, mask, mode, correction.denominator, scale=scale)
    return torch.where(whole > 0, part / whole, 0.0)


def _measured(
    parts: _Loss,
    mask: Tensor,
    correction: CorrectionConfig,
    loss: LossConfig,
    tokens: float | None,
    sequences: float | None,
) -> dict[Quantity, Moments]:
    """The loss without its KL terms and what rejection does to the step, each weighted with this batch's share."""
    keep, pg = parts.keep, parts.pg.detach()
    counted = mask if correction.denominator == "fixed" else keep
    share = torch.ones_like(pg) if tokens is None else (counted.sum() / max(tokens, 1)).to(pg)
    measured = _clipped(parts, correction.loss_type, loss)
    measured["actor/pg_loss"] = _one(pg, share)
    if sequences is not None and loss.loss_agg_mode == "seq-mean-token-mean":
        share = (counted.any(-1).sum() / max(sequences, 1)).to(pg)
    measured["lr_factor"] = _one(share * lr_factor(keep, mask, correction, loss), share)
    if parts.kl is not None:
        measured["actor/kl_loss"] = moments(parts.kl.detach(), keep, squares=False, extremes=False).pooled()
    if parts.rollout_kl is not None:
        per_sequence = masked_mean(parts.rollout_kl.detach(), keep, -1)
        measured["rollout_kl"] = moments(per_sequence, keep.any(-1), squares=False, extremes=False).double()
    return measured


def _clipped(parts: _Loss, loss_type: LossType, loss: LossConfig) -> dict[Quantity, Moments]:
    """verl's `actor/` metrics over the kept tokens: how far π_θ has moved, and where the loss's clip binds."""
    log_probs, old, advantages, keep = parts.log_probs.detach(), parts.old, parts.advantages, parts.keep
    d = log_probs - old
    measured: dict[Quantity, Moments] = {"actor/ppo_kl": moments(-d, keep, squares=False, extremes=False).pooled()}
    low, high = loss.clip_ratio_low, loss.clip_ratio_high
    up, down = advantages > 0, advantages < 0
    if loss_type in ("ppo_clip", "dual_clip", "gspo", "clip_cov"):
        rho = ratio(masked_mean(d, keep, -1)[:, None] if loss_type == "gspo" else d)
        measured["actor/pg_clipfrac"] = shares((up & (rho > 1 + high)) | (down & (rho < 1 - low)), keep).pooled()
        if loss_type == "dual_clip":
            measured["actor/pg_clipfrac_lower"] = shares(down & (rho > loss.clip_ratio_c), keep).pooled()
    elif loss_type == "cispo":
        rho = ratio(d)
        measured["actor/pg_clipfrac"] = shares((rho > 1 + high) | (rho < 1 - low), keep).pooled()
    elif loss_type == "geo_mean":
        beyond = (d > high) | (d < -low)
        measured["actor/pg_clipfrac"] = shares(up & beyond, keep).pooled()
        measured["actor/pg_clipfrac_lower"] = shares(down & beyond, keep).pooled()
    elif loss_type in ("dppo_tv", "dppo_kl"):
        outside = ~losses.dppo_inside(loss_type, log_probs, old, advantages, low=low, high=high)
        measured["actor/pg_clipfrac"] = shares(outside, keep).pooled()
    return measured


def _one(part: Tensor, share: Tensor) -> Moments:
    """A micro-batch's part of one number of a mini-batch, and its share of the tokens: merged over the mini-batch, the
    mean is the sum of the parts."""
    return Moments(share, part, part * part, part, part).double()
