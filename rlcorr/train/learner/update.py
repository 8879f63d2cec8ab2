"""Epochs × mini-batches × micro-batches: the gradient steps of one training step.

Every rank has the whole batch and goes through the same mini-batches; only the forward and backward passes are split
over ranks. The losses of micro-batches are divided by the totals of the mini-batch. So their sum over micro-batches and
ranks is the loss of the mini-batch, however it is split.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlcorr.config import LossConfig
from rlcorr.losses.aggregation import lr_factor
from rlcorr.losses.objective import policy_loss
from rlcorr.losses.per_token import clipped_value
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.masked import masked_sum
from rlcorr.measuring.measure import merge
from rlcorr.measuring.metrics import means
from rlcorr.measuring.moments import MomentTable
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.microbatch import lengths_of, plan_microbatches, slice_rows
from rlcorr.train.learner.policy import forward_options
from rlcorr.train.learner.ranks import Ranks, accumulate, clip_gradients, gather, sum_over_ranks
from rlcorr.train.learner.score import over_microbatches
from rlcorr.types import CorrectionResult, TokenBatch

STEP_METRICS = ("loss", "value_loss", "entropy", "grad_norm")
SKIPPED = ("bad/loss", "bad/gradient", "bad/all_rejected")
"""Reasons to skip an optimizer step: the loss or the gradient is not finite, or every token was rejected."""

VALUE_COEF = 0.1
"""Weight of the value loss of GAE."""
VALUE_CLIP = 0.2
"""Largest change of a value that the value loss rewards, as in PPO."""


@dataclass(frozen=True)
class Learner:
    """The policy, its optimizer, and everything else that an update needs."""

    module: nn.Module  # the policy, or the wrapper that splits it over ranks
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # scales the loss in float16; otherwise it changes nothing
    shuffle_rng: torch.Generator  # orders the rows
    loss_rng: torch.Generator  # for losses that select tokens at random
    config: TrainConfig
    ranks: Ranks


@dataclass(frozen=True)
class MiniBatch:
    """Rows of one optimizer step, and the totals that their losses are divided by."""

    batch: TokenBatch
    result: CorrectionResult
    loss: LossConfig
    tokens: float  # divisors of the policy loss, over all micro-batches and ranks
    sequences: float
    response_tokens: float  # kept or not: divisors of the value loss, the entropy, and KL terms on all tokens
    response_sequences: float


@dataclass(frozen=True)
class WholeLoss:
    """The policy loss of a mini-batch whose tokens cannot be treated row by row."""

    value: Tensor
    moments: MomentTable
    gradient: Tensor  # in log π_θ, (B, T)


def update(learner: Learner, batch: TokenBatch, result: CorrectionResult) -> dict[str, float]:
    """Make all optimizer steps of one batch; return their mean metrics, and how many were skipped for each reason."""
    optim, correction, count = learner.config.optim, learner.config.correction, len(batch.response_mask)
    step_values, measured, factors = [], [], []
    skipped: dict[str, float] = dict.fromkeys(SKIPPED, 0)
    for _ in range(optim.epochs):
        order = torch.randperm(count, generator=learner.shuffle_rng).to(batch.response_mask.device)
        for rows in order.tensor_split(min(optim.minibatches, count)):  # few rows remain if answers were left out
            mini = minibatch(learner.config, batch, result, rows)
            values, parts, fault = optimizer_step(learner, mini)
            if fault is None:
                step_values.append(values)
                measured += parts
                factors.append(lr_factor(mini.result.keep_mask, mini.batch.response_mask, correction, mini.loss))
            else:
                skipped[fault] += 1
    if not step_values:
        return skipped
    row = dict(zip(STEP_METRICS, torch.stack(step_values).mean(0).tolist(), strict=True))
    row |= means(merge(measured)) | skipped
    if not correction.bypass_mode:  # in bypass mode the kept tokens, and so this factor, depend on π_θ
        row["lr_factor"] = float(torch.stack(factors).mean())
    return row


def minibatch(config: TrainConfig, batch: TokenBatch, result: CorrectionResult, rows: Tensor) -> MiniBatch:
    mini, corrected = batch.rows(rows), result.rows(rows)
    counted = mini.response_mask if config.correction.denominator == "fixed" else corrected.keep_mask
    totals, response_totals = ((float(x.sum()), float(x.any(-1).sum())) for x in (counted, mini.response_mask))
    response_tokens, response_sequences = (max(total, 1.0) for total in response_totals)
    return MiniBatch(mini, corrected, config.policy_loss, *totals, response_tokens, response_sequences)


def optimizer_step(learner: Learner, mini: MiniBatch) -> tuple[Tensor, list[MomentTable], str | None]:
    """Make one gradient step.

    Returns:
        The values of `STEP_METRICS`, the moments of the loss, and the reason if the step was skipped, else None.
    """
    config, ranks = learner.config, learner.ranks
    learner.optimizer.zero_grad()
    whole = whole_loss(learner, mini) if needs_minibatch_statistics(config) else None
    groups = plan_microbatches(lengths_of(mini.batch), config.optim.microbatch_tokens, ranks.size)
    sums, measured = [], []
    for number, rows in enumerate(groups[ranks.rank], 1):
        with accumulate(learner.module, last=number == len(groups[ranks.rank])):
            loss, terms, moments = microbatch_loss(learner, mini, rows, whole)
            learner.scaler.scale(loss * ranks.size).backward()  # ranks average gradients, but these must be summed
        sums.append(terms)
        measured += moments
    totals = sum_over_ranks(ranks, torch.stack(sums).sum(0))
    if whole is None:
        measured = [moments for rank_moments in gather(ranks, measured) for moments in rank_moments]
    else:
        totals[0], measured = whole.value, [whole.moments]
    learner.scaler.unscale_(learner.optimizer)
    grad_norm = clip_gradients(learner.module, config.optim.max_grad_norm)
    fault = _fault(totals, measured, grad_norm)
    if fault is None:
        learner.scaler.step(learner.optimizer)
    learner.scaler.update()  # lowers the scale after a gradient that is not finite
    return torch.cat([totals, grad_norm[None].to(totals)]), measured, fault


def microbatch_loss(
    learner: Learner, mini: MiniBatch, rows: list[int], whole: WholeLoss | None
) -> tuple[Tensor, Tensor, list[MomentTable]]:
    """Return a micro-batch's part of the loss; its parts of policy loss, value loss and entropy, (3,); its moments."""
    part = slice_rows(mini.batch, rows)
    scores: Any = learner.module(part, **forward_options(learner.config.rollout))
    if whole is None:
        policy, moments = policy_loss(
            scores.log_probs, part, _result_of(mini.result, rows, part), learner.config.correction, mini.loss,
            tokens=mini.tokens, sequences=mini.sequences, response_tokens=mini.response_tokens,
            response_sequences=mini.response_sequences, top_log_probs=scores.top_log_probs,
        )  # fmt: skip
        measured = [moments]
    else:
        gradient = whole.gradient[rows or [0], : scores.log_probs.shape[1]]
        policy, measured = masked_sum(gradient * scores.log_probs, part.response_mask), []
    entropy = masked_sum(scores.entropy, part.response_mask) / mini.response_tokens
    loss, value = policy, torch.zeros_like(policy)
    if scores.values is not None:
        assert part.values is not None
        assert part.returns is not None
        losses = clipped_value(scores.values, part.values, part.returns, clip=VALUE_CLIP)
        value = masked_sum(losses, part.response_mask) / mini.response_tokens
        loss = loss + VALUE_COEF * value
    return loss, torch.stack([policy.detach(), value.detach(), entropy]), measured


def needs_minibatch_statistics(config: TrainConfig) -> bool:
    """Check whether the loss is no sum over rows: it selects tokens, or divides, by statistics of the mini-batch."""
    correction = config.correction
    divides = correction.rollout_is_batch_normalize or correction.denominator == "kept"
    return LOSSES[correction.loss_type].whole_batch or (correction.bypass_mode and divides)


def whole_loss(learner: Learner, mini: MiniBatch) -> WholeLoss:
    """Return the policy loss of a whole mini-batch, and its gradient in log π_θ.

    A forward pass without a graph gives log π_θ of all rows. Each micro-batch then sends its rows of the gradient
    through its own graph. The result does not depend on how the mini-batch is split; the price is this forward pass.
    """
    config = learner.config

    def forward(part: TokenBatch) -> dict[str, Tensor]:
        scores: Any = learner.module(part, **forward_options(config.rollout))
        return {"log_probs": scores.log_probs}

    leaf = over_microbatches(mini.batch, forward, config.optim.microbatch_tokens, learner.ranks)["log_probs"]
    loss, moments = policy_loss(
        leaf.requires_grad_(), mini.batch, mini.result, config.correction, mini.loss, generator=learner.loss_rng
    )
    return WholeLoss(loss.detach(), moments, *torch.autograd.grad(loss, leaf))


def _result_of(result: CorrectionResult, rows: list[int], part: TokenBatch) -> CorrectionResult:
    """Return the result of the correction for the rows of a micro-batch."""
    columns = part.response_mask.shape[1]
    rows_result = result.rows(torch.tensor(rows or [0], device=part.response_mask.device))
    keep = rows_result.keep_mask[:, :columns] & part.response_mask
    tensors = {name: getattr(rows_result, name)[:, :columns] for name in ("log_ratio", "weights", "rejected_by")}
    return replace(rows_result, keep_mask=keep, **tensors)


def _fault(totals: Tensor, measured: list[MomentTable], grad_norm: Tensor) -> str | None:
    # The kept tokens by the moments of the loss: in bypass mode they depend on π_θ.
    if not sum(float(m.table[m.names.index("actor/ppo_kl"), 0]) for m in measured):
        return "bad/all_rejected"
    if not bool(totals.isfinite().all()):
        return "bad/loss"
    return None if bool(grad_norm.isfinite()) else "bad/gradient"
