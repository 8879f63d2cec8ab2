"""Epochs × mini-batches × micro-batches: the gradient steps of one training step.

Every rank holds the whole batch and goes through the same mini-batches; only forward and backward are shared out. The
micro-batches' losses are divided by the mini-batch's totals, so their sum over micro-batches and ranks is the loss of
the mini-batch, whatever the split.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlcorr.config import LossConfig
from rlcorr.correction import correct
from rlcorr.losses.aggregation import lr_factor
from rlcorr.losses.objective import policy_loss
from rlcorr.losses.per_token import clipped_value
from rlcorr.masked import masked_sum
from rlcorr.measuring.measure import merge
from rlcorr.measuring.metrics import means
from rlcorr.measuring.moments import Measured
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.microbatch import lengths_of, plan, require, take
from rlcorr.train.learner.ranks import Ranks, accumulate, clip_gradients, gather, sum_over_ranks
from rlcorr.train.learner.score import over_microbatches
from rlcorr.types import CorrectionResult, TokenBatch

STEP_METRICS = ("loss", "value_loss", "entropy", "grad_norm")
SKIPPED = ("bad/loss", "bad/gradient", "bad/all_rejected")
"""Why an optimizer step was not made: the loss or the gradient is not finite, or nothing was kept to learn from."""

PolicyPart = Callable[[Tensor, TokenBatch, CorrectionResult, list[int]], tuple[Tensor, list[Measured]]]


@dataclass(frozen=True)
class Learner:
    """What an update changes, and how."""

    module: nn.Module  # the policy, or what shares it out over ranks
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # of the loss in float16; otherwise it passes everything on
    shuffle: torch.Generator
    chance: torch.Generator  # for losses that select at random
    config: TrainConfig
    ranks: Ranks


@dataclass(frozen=True)
class MiniBatch:
    batch: TokenBatch
    result: CorrectionResult
    loss: LossConfig
    tokens: float  # what the loss of all micro-batches and ranks together is divided by
    sequences: float
    response_tokens: float  # kept or not: what the value loss, the entropy and KL terms on all of them are divided by
    response_sequences: float


def update(learner: Learner, batch: TokenBatch, result: CorrectionResult) -> dict[str, float]:
    """All optimizer steps of one batch; returns their mean metrics and how many were skipped, and why."""
    require(batch, fields_read(learner.config))
    optim, correction, rows = learner.config.optim, learner.config.correction, len(batch.response_mask)
    done, measured, factors = [], [], []
    skipped: dict[str, float] = dict.fromkeys(SKIPPED, 0)
    for _ in range(optim.epochs):
        order = torch.randperm(rows, generator=learner.shuffle).to(batch.response_mask.device)
        for chosen in order.tensor_split(min(optim.minibatches, rows)):  # fewer rows where answers were left out
            mini = minibatch(learner.config, batch, result, chosen)
            values, parts, fault = optimizer_step(learner, mini)
            if fault is None:
                done.append(values)
                measured += parts
                factors.append(lr_factor(mini.result.keep_mask, mini.batch.response_mask, correction, mini.loss))
            else:
                skipped[fault] += 1
    if not done:
        return skipped
    report = dict(zip(STEP_METRICS, torch.stack(done).mean(0).tolist(), strict=True)) | means(merge(measured)) | skipped
    if not correction.bypass_mode:  # what is kept is known before the loss, so no part of a mini-batch need add up
        report["lr_factor"] = float(torch.stack(factors).mean())
    return report


def fields_read(config: TrainConfig) -> list[str]:
    """Fields of the batch that the losses read."""
    names = ["advantages", "old_log_probs", "prompt_ids", "prompt_mask", "response_ids"]
    if config.advantage.estimator == "gae":
        names += ["values", "returns"]
    if config.policy_loss.use_kl_loss:
        names.append("ref_log_probs")
    return names + (["routed_experts"] if config.rollout.router_replay else [])


def minibatch(config: TrainConfig, batch: TokenBatch, result: CorrectionResult, rows: Tensor) -> MiniBatch:
    mini, fixed = batch.rows(rows), result.rows(rows)
    counted = mini.response_mask if config.correction.denominator == "fixed" else fixed.keep_mask
    of_counted, of_responses = ((float(x.sum()), float(x.any(-1).sum())) for x in (counted, mini.response_mask))
    response_tokens, response_sequences = (max(total, 1.0) for total in of_responses)
    return MiniBatch(mini, fixed, config.policy_loss, *of_counted, response_tokens, response_sequences)


def optimizer_step(learner: Learner, mini: MiniBatch) -> tuple[Tensor, list[Measured], str | None]:
    """One gradient step → the values of STEP_METRICS, the loss's moments, and why the step was skipped, if it was."""
    config, ranks = learner.config, learner.ranks
    learner.optimizer.zero_grad()
    policy_part = of_whole(learner, mini) if needs_whole(config) else of_parts(learner, mini)
    groups = plan(
        range(len(mini.batch.response_mask)), lengths_of(mini.batch), config.optim.microbatch_tokens, ranks.size
    )
    sums, measured = [], []
    for number, rows in enumerate(groups[ranks.rank], 1):
        part = take(mini.batch, rows)
        with accumulate(learner.module, last=number == len(groups[ranks.rank])):
            loss, terms, moments = microbatch_loss(learner, mini, part, rows, policy_part)
            learner.scaler.scale(loss * ranks.size).backward()  # ranks average gradients; the parts are to be summed
        sums.append(terms)
        measured += moments
    totals = sum_over_ranks(ranks, torch.stack(sums).sum(0))
    measured = [moments for of_rank in gather(ranks, measured) for moments in of_rank]
    learner.scaler.unscale_(learner.optimizer)
    grad_norm = clip_gradients(learner.module, config.optim.max_grad_norm)
    fault = _fault(totals, measured, grad_norm)
    if fault is None:
        learner.scaler.step(learner.optimizer)
    learner.scaler.update()  # lowers the scale after a gradient that is not finite
    return torch.cat([totals, grad_norm[None].to(totals)]), measured, fault


def microbatch_loss(
    learner: Learner, mini: MiniBatch, part: TokenBatch, rows: list[int], policy_part: PolicyPart
) -> tuple[Tensor, Tensor, list[Measured]]:
    """This micro-batch's part of the loss; its parts of policy loss, value loss and entropy; its moments."""
    config = learner.config
    optim, rollout, advantage = config.optim, config.rollout, config.advantage
    scores: Any = learner.module(
        part, rollout.scored_temperature, replay=rollout.router_replay, entropy_gradient=optim.entropy_coef > 0
    )
    result = _result_of(mini.result, rows, part)
    policy, measured = policy_part(scores.log_probs, part, result, rows)
    tokens = mini.response_tokens
    entropy = masked_sum(scores.entropy.detach(), part.response_mask) / tokens
    loss, value = policy, torch.zeros_like(policy)
    if optim.entropy_coef > 0:
        correction, keep = config.correction, result.keep_mask
        if correction.bypass_mode:  # there π_θ decides what is kept
            keep = correct(part.replace(old_log_probs=scores.log_probs.detach()), correction).keep_mask
        loss = loss - optim.entropy_coef * masked_sum(scores.entropy, keep) / tokens
    if scores.values is not None:
        assert part.values is not None
        assert part.returns is not None
        losses = clipped_value(scores.values, part.values, part.returns, clip=advantage.value_clip)
        value = masked_sum(losses, part.response_mask) / tokens
        loss = loss + advantage.value_coef * value
    return loss, torch.stack([policy.detach(), value.detach(), entropy]), measured


def of_parts(learner: Learner, mini: MiniBatch) -> PolicyPart:
    """The policy loss of each micro-batch by itself."""

    def part_of(
        log_probs: Tensor, part: TokenBatch, result: CorrectionResult, _: list[int]
    ) -> tuple[Tensor, list[Measured]]:
        loss, measured = policy_loss(
            log_probs, part, result, learner.config.correction, mini.loss, tokens=mini.tokens, sequences=mini.sequences,
            response_tokens=mini.response_tokens, response_sequences=mini.response_sequences,
        )  # fmt: skip
        return loss, [measured]

    return part_of


def needs_whole(config: TrainConfig) -> bool:
    """Whether the loss is no sum over rows: it selects by statistics of the mini-batch, or divides by such a one."""
    correction = config.correction
    following = correction.rollout_is_batch_normalize or correction.denominator == "kept"
    return correction.loss_type in ("clip_cov", "kl_cov") or (correction.bypass_mode and following)


def of_whole(learner: Learner, mini: MiniBatch) -> PolicyPart:
    """The loss of the whole mini-batch, by its gradient in log π_θ.

    A forward pass without a graph gives log π_θ of all rows; dL/d log π_θ on them is what each micro-batch then sends
    through its own graph. So the split changes nothing, for one more forward pass.
    """
    config = learner.config

    def forward(part: TokenBatch) -> dict[str, Tensor]:
        scores: Any = learner.module(part, config.rollout.scored_temperature, replay=config.rollout.router_replay)
        return {"log_probs": scores.log_probs}

    scores = over_microbatches(mini.batch, forward, config.optim.microbatch_tokens, learner.ranks)
    leaf = scores["log_probs"].requires_grad_()
    loss, whole = policy_loss(leaf, mini.batch, mini.result, config.correction, mini.loss, generator=learner.chance)
    (gradient,) = torch.autograd.grad(loss, leaf)
    shares = iter([(loss.detach(), [whole])] if learner.ranks.main else [])

    def part_of(
        log_probs: Tensor, part: TokenBatch, _: CorrectionResult, rows: list[int]
    ) -> tuple[Tensor, list[Measured]]:
        value, measured = next(shares, (torch.zeros_like(loss.detach()), []))  # reported once
        given = gradient[rows or [0], : log_probs.shape[1]]
        surrogate = masked_sum(given * log_probs, part.response_mask)
        return surrogate - surrogate.detach() + value, measured

    return part_of


def _result_of(result: CorrectionResult, rows: list[int], part: TokenBatch) -> CorrectionResult:
    """What the correction decided about the rows of a micro-batch."""
    columns = part.response_mask.shape[1]
    chosen = result.rows(torch.tensor(rows or [0], device=part.response_mask.device))
    keep = chosen.keep_mask[:, :columns] & part.response_mask
    cut = {name: getattr(chosen, name)[:, :columns] for name in ("log_ratio", "weights", "rejected_by")}
    return dataclasses.replace(chosen, keep_mask=keep, **cut)


def _fault(totals: Tensor, measured: list[Measured], grad_norm: Tensor) -> str | None:
    if not kept_tokens(measured):
        return "bad/all_rejected"
    if not bool(totals.isfinite().all()):
        return "bad/loss"
    return None if bool(grad_norm.isfinite()) else "bad/gradient"


def kept_tokens(measured: list[Measured]) -> float:
    """In bypass mode the kept tokens follow π_θ, so only the loss knows how many there were."""
    return sum(float(m.table[m.names.index("actor/ppo_kl"), 0]) for m in measured)
