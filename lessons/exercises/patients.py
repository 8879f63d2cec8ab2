"""The patients of the lesson on silent bugs: recorded steps, healthy or with one of fourteen bugs planted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlcorr import CorrectionConfig, CorrectionResult, RejectionRule, TokenBatch, correct
from rlcorr.losses.advantages import group_normalised
from rlcorr.losses.objective import aggregate
from rlcorr.records import runs

TREATMENT = CorrectionConfig(
    rollout_is="token",
    rollout_is_threshold=2.0,
    rollout_rs=(RejectionRule("sequence", "k1", upper=1.02, lower=0.98, reduce="mean"),),
)
"""Token ratios, capped at 2; answers whose geometric mean leaves 0.98 … 1.02 are rejected."""


GROUP, MICROBATCHES = 8, 4
"""Answers in a group whose rewards are compared, and micro-batches of a step, both in the order of the rows."""


@dataclass(frozen=True)
class Patient:
    """A recorded batch as a training loop sees it."""

    batch: TokenBatch
    result: CorrectionResult
    loss_of_ones: float
    """What the loop's average makes of a loss of 1 on every kept token."""
    advantages: Tensor
    """(B,) one advantage per answer, normalised within its group."""


def treated(batch: TokenBatch, *, denominator: Any = "fixed", rewards_dtype: torch.dtype = torch.float32) -> Patient:
    """Return the batch, corrected without a bug, or with another denominator or type of the rewards."""
    result, mask = correct(batch, TREATMENT), batch.response_mask
    rewards = batch.tensors()["rewards"].float()
    advantages = group_normalised(rewards, torch.arange(len(rewards)) // GROUP).to(rewards_dtype)
    return Patient(batch, result, _loss_of_ones(result, mask, denominator), advantages)


def _loss_of_ones(result: CorrectionResult, mask: Tensor, denominator: Any = "fixed") -> float:
    ones = torch.ones(mask.shape, dtype=torch.float64)
    return float(aggregate(ones, result.keep_mask, mask, denominator=denominator))


def last_microbatch(count: int) -> slice:
    """Return the rows of the last micro-batch of a step with so many answers."""
    return slice(count - count // MICROBATCHES, count)


# --- one bug each ---


def _logit(log_p: Tensor) -> Tensor:
    c = log_p.double().clamp(-50.0, -1e-8)
    return c - (-torch.expm1(c)).log()


def _log_prob(logit: Tensor) -> Tensor:
    return -torch.nn.functional.softplus(-logit).float()


def _shift(batch: TokenBatch) -> Patient:
    """The engine's list starts with a placeholder, and nobody dropped it."""
    return treated(batch.replace(rollout_log_probs=batch.rollout_log_probs.roll(1, -1)))


def _upside_down(batch: TokenBatch) -> Patient:
    """engine − trainer instead of trainer − engine."""
    p, q = batch.tensors()["old_log_probs"], batch.rollout_log_probs
    return treated(batch.replace(old_log_probs=q, rollout_log_probs=p))


def _temperature(batch: TokenBatch) -> Patient:
    """Sampled and trained at a temperature of 0.7; the engine reports the log-prob before it. As if all other tokens
    were one, because the others were not recorded."""
    return treated(batch.replace(rollout_log_probs=_log_prob(0.7 * _logit(batch.rollout_log_probs))))


def _padding(batch: TokenBatch) -> Patient:
    """The mask of a batch that is not padded. Padding has log-prob 0 on both sides."""
    zeroed = {name: batch.tensors()[name].where(batch.response_mask, 0) for name in PAIR}
    return treated(batch.replace(**zeroed, response_mask=torch.ones_like(batch.response_mask)))


def _bf16(batch: TokenBatch) -> Patient:
    """Both log-probs came out of autocast, and were subtracted as they came."""
    return treated(batch.replace(**{name: batch.tensors()[name].bfloat16().float() for name in PAIR}))


def _mask_off(batch: TokenBatch) -> Patient:
    """The mask begins at the last token of the prompt, to which the trainer gives e⁻¹⁶ (as the warm start does, which
    never learned to write one) and the engine's list a 0; and it misses the last token of the answer."""
    p, q, ids = (batch.tensors()[name].roll(1, -1) for name in (*PAIR, "response_ids"))
    generator = torch.Generator().manual_seed(15)
    p[:, 0], q[:, 0] = -16 + 0.7 * torch.randn(len(p), generator=generator), 0.0
    ids[:, 0] = batch.tensors()["prompt_ids"][:, -1]
    return treated(batch.replace(old_log_probs=p, rollout_log_probs=q, response_ids=ids))


def _stale_head(batch: TokenBatch) -> Patient:
    """The engine's head is old: a constant per token id between the logits. Less what all ids share, because a softmax
    does not see it."""
    ids = batch.tensors()["response_ids"].long()
    moved = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(15))[ids]
    moved -= moved.exp()[batch.response_mask].mean().log()
    return treated(batch.replace(old_log_probs=_log_prob(_logit(batch.tensors()["old_log_probs"]) + moved)))


def _weights_twice(batch: TokenBatch) -> Patient:
    """The loss multiplies by the weights; so did whoever made the advantages."""
    patient = treated(batch)
    return replace(patient, result=replace(patient.result, weights=patient.result.weights.square()))


def _other_denominator(batch: TokenBatch) -> Patient:
    """All tokens were to be the denominator, and the mean is taken over what is kept."""
    return treated(batch, denominator="kept")


def _field_dropped(batch: TokenBatch) -> Patient:
    """The last micro-batch comes without the engine's log-probs, and the loop goes on without a correction there."""
    patient, rows, mask = treated(batch), last_microbatch(len(batch.response_mask)), batch.response_mask
    weights, keep = patient.result.weights.clone(), patient.result.keep_mask.clone()
    weights[rows], keep[rows] = mask[rows].to(weights), mask[rows]
    result = replace(patient.result, weights=weights, keep_mask=keep)
    return replace(patient, result=result, loss_of_ones=_loss_of_ones(result, mask))


def _other_experts(batch: TokenBatch) -> Patient:
    """The trainer scores the last micro-batch with the experts of the one before. As if other experts moved every logit
    by a standard normal number, minus what all tokens share, because a softmax does not see it."""
    p, rows = batch.tensors()["old_log_probs"].clone(), last_microbatch(len(batch.response_mask))
    moved = torch.randn(p[rows].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(15))
    moved -= moved.exp()[batch.response_mask[rows]].mean().log()
    p[rows] = _log_prob(_logit(p[rows]) + moved)
    return treated(batch.replace(old_log_probs=p))


def _zeros_filled_in(batch: TokenBatch) -> Patient:
    """The engine's log-probs of one turn are missing, the second quarter of the positions, and 0 was filled in."""
    q, width = batch.rollout_log_probs.clone(), batch.response_mask.shape[1]
    q[:, width // 4 : width // 2] = 0.0
    return treated(batch.replace(rollout_log_probs=q))


def _trainer_filled_in(batch: TokenBatch) -> Patient:
    """The engine's log-probs of the last micro-batch are missing, and a ratio of 1 was filled in."""
    q, rows = batch.rollout_log_probs.clone(), last_microbatch(len(batch.response_mask))
    q[rows] = batch.tensors()["old_log_probs"][rows]
    return treated(batch.replace(rollout_log_probs=q))


def _whole_advantages(batch: TokenBatch) -> Patient:
    """The rewards came as integers, and the advantages were cast back to their type."""
    return treated(batch, rewards_dtype=torch.int64)


PAIR = ("old_log_probs", "rollout_log_probs")
PLANTS: dict[str, Callable[[TokenBatch], Patient]] = {
    "shift by one": _shift,
    "upside down": _upside_down,
    "wrong temperature": _temperature,
    "padding counted": _padding,
    "bf16 subtraction": _bf16,
    "mask off by one": _mask_off,
    "stale head": _stale_head,
    "weights twice": _weights_twice,
    "wrong denominator": _other_denominator,
    "dropped field": _field_dropped,
    "stale experts": _other_experts,
    "zeros filled in": _zeros_filled_in,
    "ones filled in": _trainer_filled_in,
    "whole advantages": _whole_advantages,
}
LOOP_PLANTS = ("dropped field", "stale experts", "zeros filled in", "ones filled in", "whole advantages")
"""Bugs that can be planted in any run: they do not need a character per token."""

# --- patients that the lesson does not show ---

HELD_OUT = (
    ("bf16", -1, "bf16 subtraction"),
    ("async", 0, "upside down"),
    ("control_fp32", 0, None),
    ("top_p", -1, "shift by one"),
    ("long_bf16", 0, "mask off by one"),
    ("long_stale_4", 0, "upside down"),
    ("long_kv_fp8_e5m2", -1, None),
    ("moe_bf16", 0, "mask off by one"),
    ("temperature_raw", -1, None),
    ("stale_4", -1, "shift by one"),
    ("kv_fp8", 0, "bf16 subtraction"),
    ("long_stale_4", -1, None),
)
"""Run, step, and what is planted; none of the run that the lesson shows. Small gaps hide some of the bugs, so these are
patients whose bug can be found."""


def pairs_of(batch: TokenBatch) -> tuple[Tensor, Tensor, Tensor]:
    """old_log_probs, rollout_log_probs and mask, with nan for padding."""
    old, rollout, mask = (batch.tensors()[name] for name in (*PAIR, "response_mask"))
    return old.where(mask, torch.nan), rollout.where(mask, torch.nan), mask


def held_out(name: str, place: int, bug: str | None) -> tuple[Tensor, Tensor, Tensor]:
    run = runs.find_run(name)
    batch = runs.read_step(run, runs.list_steps(run)[place]).batch
    return pairs_of(PLANTS[bug](batch).batch if bug else batch)
