"""The loss that is differentiated: choice of the token losses, importance weights, aggregation, KL terms."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import Aggregation, CorrectionConfig, LossConfig, LossType
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.losses.aggregation import Totals, aggregate, lr_factor
from rlcorr.losses.kl import KLTerm, kl_term
from rlcorr.losses.policy_losses import LOSSES, Cut, Inputs
from rlcorr.losses.score_centering import centering_of
from rlcorr.masked import masked_mean
from rlcorr.measuring.moments import Moments, MomentTable, moments
from rlcorr.ratios import at_least_float32
from rlcorr.types import CorrectionResult, TokenBatch


def policy_loss(
    log_probs: Tensor,
    batch: TokenBatch,
    result: CorrectionResult,
    correction: CorrectionConfig,
    loss: LossConfig,
    *,
    tokens: float | None = None,
    sequences: float | None = None,
    response_tokens: float | None = None,
    response_sequences: float | None = None,
    top_log_probs: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, MomentTable]:
    """Compute the loss of one mini- or micro-batch, and the moments of its metrics. Needs advantages.

    decoupled  w(π_old/π_rollout) · loss(π_θ/π_old); weights and rejection from `result`, fixed before the update
    bypass     w · loss(π_θ/π_rollout); weights and rejection from π_θ/π_rollout, and `result` is not read

    plus kl_loss_coef · KL(π_θ‖π_ref) over `kl_loss_tokens`, aggregated like the loss, and rollout_kl_loss_coef ·
    KL(π_θ‖π_rollout) over all response tokens, aggregated by `rollout_kl_loss_agg_mode`. Weights have no gradient and
    multiply after the clip. Log-probs become float32 first; give none in fp16, whose gradients above 65,504 are inf.

    `tokens` and `sequences` are totals over all micro-batches and ranks, so that their losses sum to that of the whole
    (`aggregate`). Batch normalisation in bypass mode still sees one micro-batch only. `response_tokens` and
    `response_sequences` count kept and rejected ones: divisors of a KL term on all response tokens, needed only if
    `tokens` counts the kept ones (denominator="kept"). `top_log_probs` is log π_θ of `batch.top_ids`, (B, T, K), with a
    graph; `loss.score_centering` needs it, and adds A times `centering_terms` to the loss of each token.

    >>> mask = torch.tensor([[True, True, True]])
    >>> batch = TokenBatch(mask, torch.zeros(1, 3), old_log_probs=torch.zeros(1, 3), advantages=torch.ones(1, 3))
    >>> result = correct(batch, CorrectionConfig())
    >>> theta = torch.zeros(1, 3, requires_grad=True)  # ρ = 1 everywhere
    >>> value, measured = policy_loss(theta, batch, result, CorrectionConfig(), LossConfig())
    >>> value.item()
    -1.0
    """
    totals = Totals(tokens, sequences, response_tokens, response_sequences)
    parts = _loss(log_probs, batch, result, correction, loss, totals, generator, top_log_probs)
    return parts.value, MomentTable.of(_measured(parts, batch.response_mask, correction, loss, totals))


@dataclass(frozen=True)
class _Loss:
    """The number that is differentiated, and its parts. They are 0 outside `keep`, or outside the KL term's tokens."""

    value: Tensor
    pg: Tensor  # () policy loss without the KL terms
    kl: KLTerm | None  # against the reference
    rollout_kl: KLTerm | None  # against the engine
    inputs: Inputs


def _loss(
    log_probs: Tensor,
    batch: TokenBatch,
    result: CorrectionResult,
    correction: CorrectionConfig,
    loss: LossConfig,
    totals: Totals,
    generator: torch.Generator | None,
    top_log_probs: Tensor | None = None,
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
    theta = torch.where(keep, at_least_float32(log_probs), 0)
    old, advantages, weights = (neutral(at_least_float32(x), keep) for x in (old, batch.advantages, result.weights))
    if correction.loss_type == "geo_mean":
        weights = masked_mean(weights.clamp(min=1e-10).log(), keep, -1).exp()[:, None]
    inputs = Inputs(theta, old, advantages, keep)
    per_token = weights * LOSSES[correction.loss_type].of(inputs, loss, generator)
    if loss.score_centering:
        per_token = per_token + advantages * centering_of(batch, top_log_probs, correction, keep)

    def total(x: Tensor, tokens: Tensor, mode: Aggregation) -> Tensor:
        counts = (correction.denominator, totals.tokens, totals.sequences)
        counts = counts if tokens is keep else totals.of_responses(correction.denominator)
        return aggregate(x, tokens, mask, mode, *counts, loss.loss_scale_factor)

    pg = total(per_token, keep, loss.loss_agg_mode)
    kl, rollout_kl = _kl_terms(log_probs, batch, keep, loss)
    return _Loss(_with_kl(pg, kl, rollout_kl, loss, total), pg, kl, rollout_kl, inputs)


def _with_kl(
    pg: Tensor,
    kl: KLTerm | None,
    rollout_kl: KLTerm | None,
    loss: LossConfig,
    total: Callable[[Tensor, Tensor, Aggregation], Tensor],
) -> Tensor:
    """Return the policy loss with its KL terms, which `total` aggregates."""
    value = pg
    if kl is not None:
        value = value + loss.kl_loss_coef * total(kl.per_token, kl.tokens, loss.loss_agg_mode)
    if rollout_kl is not None:
        penalty = total(rollout_kl.per_token, rollout_kl.tokens, loss.rollout_kl_loss_agg_mode)
        value = value + loss.rollout_kl_loss_coef * penalty
    return value


def _kl_terms(
    log_probs: Tensor, batch: TokenBatch, keep: Tensor, loss: LossConfig
) -> tuple[KLTerm | None, KLTerm | None]:
    """Return the KL terms against the reference and against the engine; None for those that `loss` does not use."""
    kl = rollout_kl = None
    if loss.use_kl_loss:
        if batch.ref_log_probs is None:
            raise UsageError("use_kl_loss needs ref_log_probs; the batch has none.")
        tokens = keep if loss.kl_loss_tokens == "kept" else batch.response_mask
        kl = kl_term(log_probs, batch.ref_log_probs, tokens, keep, loss.kl_loss_type)
    if loss.use_rollout_kl_loss:
        rollout, estimator = batch.rollout_log_probs, loss.rollout_kl_estimator_type
        rollout_kl = kl_term(log_probs, rollout, batch.response_mask, keep, estimator)
    return kl, rollout_kl


def score_coefficients(
    log_probs: Tensor,
    batch: TokenBatch,
    result: CorrectionResult,
    correction: CorrectionConfig,
    loss: LossConfig,
    *,
    tokens: float | None = None,
    sequences: float | None = None,
    response_tokens: float | None = None,
    response_sequences: float | None = None,
) -> Tensor:
    """Return the coefficients c (B, T) in −∇loss = Σ c ∇ log π_θ, a sum over all tokens.

    The arguments are those of `policy_loss`.
    """
    leaf = log_probs.detach().requires_grad_()
    totals = Totals(tokens, sequences, response_tokens, response_sequences)
    parts = _loss(leaf, batch, result, correction, loss, totals, None)
    return -torch.autograd.grad(parts.value, leaf)[0]


def neutral(x: Tensor, keep: Tensor) -> Tensor:
    """Return x without gradient, as floats, and 0 outside `keep`, where x may contain anything."""
    return torch.where(keep, x.detach() if x.is_floating_point() else x.float(), 0)


def _measured(
    parts: _Loss,
    mask: Tensor,
    correction: CorrectionConfig,
    loss: LossConfig,
    totals: Totals,
) -> dict[str, Moments]:
    """Compute the moments of the loss's metrics.

    The loss without KL terms and the learning-rate factor are weighted with this batch's share of the tokens or
    sequences. The KL terms are measured over their own tokens.
    """
    tokens, sequences = totals.tokens, totals.sequences
    keep, pg = parts.inputs.keep, parts.pg.detach()
    counted = mask if correction.denominator == "fixed" else keep
    share = torch.ones_like(pg) if tokens is None else (counted.sum() / max(tokens, 1)).to(pg)
    measured = _clipped(parts, correction.loss_type, loss)
    measured["actor/pg_loss"] = _one(pg, share)
    if sequences is not None and loss.loss_agg_mode == "seq-mean-token-mean":
        share = counted.any(-1).sum().to(pg)  # a mean over micro-batches: one factor for all of them cancels
    measured["lr_factor"] = _one(share * lr_factor(keep, mask, correction, loss), share)
    if parts.kl is not None:
        measured["actor/kl_loss"] = _sums(parts.kl.per_token, parts.kl.compared).pooled()
    if parts.rollout_kl is not None:
        per_sequence = masked_mean(parts.rollout_kl.per_token, parts.rollout_kl.compared, -1)
        measured["rollout_kl"] = _sums(per_sequence, parts.rollout_kl.compared.any(-1))
    left_out = [term.left_out for term in (parts.kl, parts.rollout_kl) if term is not None]
    if left_out:
        measured["kl_left_out"] = moments(torch.stack(left_out).any(0), mask).pooled()
    return measured


def _clipped(parts: _Loss, name: LossType, loss: LossConfig) -> dict[str, Moments]:
    """Compute verl's `actor/` metrics over the kept tokens: how far π_θ moved, and which tokens the clip affects."""
    inputs = parts.inputs
    measured: dict[str, Moments] = {"actor/ppo_kl": _sums(-inputs.log_ratio(), inputs.keep).pooled()}
    cuts: dict[str, Cut | None] = {
        "actor/pg_clipfrac": LOSSES[name].cut, "actor/pg_clipfrac_lower": LOSSES[name].cut_again,
    }  # fmt: skip
    for metric, cut in cuts.items():
        if cut is not None:
            measured[metric] = moments(cut(inputs, loss), inputs.keep).pooled()
    return measured


def _sums(x: Tensor, mask: Tensor) -> Moments:
    """Return counts and sums over the last dimension, without a graph."""
    return moments(x.detach(), mask, squares=False, extremes=False)


def _one(part: Tensor, share: Tensor) -> Moments:
    """Return the moments of a micro-batch's part of one number, with its share of the tokens as count.

    Merged over the micro-batches of a mini-batch, the mean is the sum of the parts.
    """
    return Moments(share, part, part * part, part, part)
