"""One token under a correction: every number that the library used for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import old_log_probs, require_fields
from rlcorr.errors import UsageError, unknown
from rlcorr.losses.objective import score_coefficients
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.masked import masked_mean
from rlcorr.ratios import over_sequence, ratio
from rlcorr.rejection import inside, log_bounds, passes, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch

RowOrder = Literal["off", "recorded", "lowest", "highest", "rejected"]
"""Order of responses. `off`: largest |mean log-ratio| first; `recorded`; `lowest` and `highest`: by reward; `rejected`:
largest share of rejected tokens first."""


@dataclass(frozen=True)
class RuleStory:
    """The numbers of one rule for the token."""

    rule: RejectionRule
    token_value: float
    """The divergence of this token alone; log r for k1."""
    statistic: float
    """The compared statistic: the value of the token, or its sum, mean, max or min over the sequence; log r for k1."""
    lower: float
    upper: float
    """Bounds on the statistic, ±inf if there is none. For k1 they are the logarithms of the configured ones."""
    inside: bool
    passes: bool
    """Whether the token is inside, or the rule does not apply to it."""


@dataclass(frozen=True)
class TokenStory:
    """The numbers of one token of a batch.

    In bypass mode π_θ replaces π_old; before the first update they are equal.
    """

    row: int
    column: int
    tokens: int
    """Number of tokens of this response."""
    old_log_prob: float
    rollout_log_prob: float
    old_prob: float
    rollout_prob: float
    log_ratio: float
    ratio: float
    """exp(log_ratio), with log_ratio clamped to ±20."""
    log_weight: float
    """The log weight before exp and bounds: log-ratio, or its sum or mean over the sequence; 0 without weights."""
    raw_weight: float
    bounded_weight: float
    weight: float
    """The factor on the loss of a kept token, after batch normalisation if there is any."""
    norm_factor: float | None
    rules: tuple[RuleStory, ...]
    rejected_by: str | None
    """Name of the first rule that rejects the token."""
    advantage: float | None
    contribution: float | None
    """c, with −∇loss = Σ c ∇ log π_θ over the tokens, at π_θ = π_old, without KL terms and score centering. None
    without advantages, and for losses that compare the tokens of a batch (clip_cov, kl_cov)."""
    sampled_log_prob: float | None
    """Log-prob of the weights that sampled, in the trainer's arithmetic; None if the batch does not have it."""
    counted: int
    """Number of tokens over which the loss is averaged."""


def token_story(
    batch: TokenBatch,
    result: CorrectionResult,
    config: CorrectionConfig,
    row: int,
    column: int,
    loss: LossConfig | None = None,
) -> TokenStory:
    """Return all numbers of the token at (row, column). `result` must be `correct(batch, config)`.

    Raises `UsageError` if there is no such token, or no π_old.
    """
    _check_token(batch, config, row, column)
    one, row_result = batch.rows(slice(row, row + 1)), result.rows(slice(row, row + 1))
    d, position = row_result.log_ratio, (0, column)  # this row is the only one of `one`
    log_w, bounded = _weights(one, d, config)
    old, rollout = old_log_probs(batch)[row, column].double(), batch.rollout_log_probs[row, column].double()
    rejected = int(row_result.rejected_by[position])
    return TokenStory(
        row=row,
        column=column,
        tokens=int(one.response_mask.sum()),
        old_log_prob=float(old),
        rollout_log_prob=float(rollout),
        old_prob=float(old.exp()),
        rollout_prob=float(rollout.exp()),
        log_ratio=float(d[position]),
        ratio=float(ratio(d)[position]),
        log_weight=float(log_w[position]),
        raw_weight=float(ratio(log_w)[position]),
        bounded_weight=float(bounded[position]),
        weight=float(row_result.weights[position]),
        norm_factor=None if result.norm_factor is None else float(result.norm_factor),
        rules=tuple(_rule_story(rule, one, d, column) for rule in config.rollout_rs),
        rejected_by=config.rollout_rs[rejected - 1].name if rejected else None,
        advantage=_number(batch.advantages, row, column),
        contribution=_contribution(batch, result, config, loss or LossConfig(), row, column),
        sampled_log_prob=_number(batch.sampled_log_probs, row, column),
        counted=int((batch.response_mask if config.denominator == "fixed" else result.keep_mask).sum()),
    )


def _number(values: Tensor | None, row: int, column: int) -> float | None:
    return None if values is None else float(values[row, column])


def _check_token(batch: TokenBatch, config: CorrectionConfig, row: int, column: int) -> None:
    require_fields(batch, config)
    rows, columns = batch.response_mask.shape
    if not 0 <= row < rows:
        raise UsageError(f"there is no response {row}; the batch has {rows} responses, counted from 0.")
    if not (0 <= column < columns and batch.response_mask[row, column]):
        tokens = int(batch.response_mask[row].sum())
        raise UsageError(f"response {row} has no token {column}; it has {tokens}, counted from 0.")


def _weights(one: TokenBatch, d: Tensor, config: CorrectionConfig) -> tuple[Tensor, Tensor]:
    """Return log w before its bounds and w within them, (1, T) each; 0 and 1 without weights."""
    if config.weights is None:
        return torch.zeros_like(d), torch.ones_like(d)
    log_w = config.weights.raw(d, one.response_mask).expand_as(d)
    return log_w, config.weights.bounded(log_w)


def _rule_story(rule: RejectionRule, one: TokenBatch, d: Tensor, column: int) -> RuleStory:
    """Return the numbers of one rule. `one` is a batch of one row."""
    alone = rule_statistic(replace(rule, level="token", reduce=None), one, d)
    statistic = rule_statistic(rule, one, d).expand_as(d)
    lower, upper = log_bounds(rule)
    return RuleStory(
        rule=rule,
        token_value=float(alone[0, column]),
        statistic=float(statistic[0, column]),
        lower=lower,
        upper=upper,
        inside=bool(inside(rule, statistic)[0, column]),
        passes=bool(passes(rule, statistic, one, d)[0, column]),
    )


def _contribution(
    batch: TokenBatch,
    result: CorrectionResult,
    config: CorrectionConfig,
    loss: LossConfig,
    row: int,
    column: int,
) -> float | None:
    if batch.advantages is None or LOSSES[config.loss_type].whole_batch:
        return None
    loss = replace(loss, use_kl_loss=False, use_rollout_kl_loss=False, score_centering=False)
    return float(score_coefficients(old_log_probs(batch), batch, result, config, loss)[row, column])


# --- the order of responses ---


def ordered_rows(batch: TokenBatch, result: CorrectionResult, order: RowOrder) -> list[int]:
    """Return every row once, in this order. Equal rows stay as recorded, and NaN comes first.

    Raises `UsageError` for an unknown order, or for an order by rewards without rewards.
    """
    if order not in get_args(RowOrder):
        raise unknown("order", order, get_args(RowOrder))
    rows = len(batch.response_mask)
    if order == "recorded":
        return list(range(rows))
    if order in ("lowest", "highest"):
        if batch.rewards is None:
            raise UsageError(f"the order {order!r} needs rewards; the batch has none.")
        key = batch.rewards if order == "highest" else -batch.rewards
    elif order == "rejected":
        key = masked_mean((~result.keep_mask).float(), batch.response_mask, -1)
    else:
        key = over_sequence(result.log_ratio, batch.response_mask, "mean").abs()
    return key.argsort(descending=True, stable=True).tolist()


def mean_ratios(batch: TokenBatch, result: CorrectionResult) -> list[float]:
    """Return the geometric mean of the ratios of each response, exp of its mean log r."""
    return ratio(over_sequence(result.log_ratio, batch.response_mask, "mean")).tolist()


def furthest_token(batch: TokenBatch, result: CorrectionResult, rows: Sequence[int]) -> tuple[int, int] | None:
    """Return (row, column) of the largest |log r| in these rows; None if they have no token."""
    mask = batch.response_mask[list(rows)]
    if not mask.any():
        return None
    size = torch.where(mask, result.log_ratio[list(rows)].abs().nan_to_num(torch.inf), -1)
    index = int(size.argmax())
    return rows[index // mask.shape[1]], index % mask.shape[1]
