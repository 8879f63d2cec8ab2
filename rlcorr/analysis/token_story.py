"""One token under a correction: every number that the library used for it, and the text that it stands for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import bound_weights, log_weights, old_log_probs, require
from rlcorr.errors import UsageError, unknown
from rlcorr.losses.objective import score_coefficients
from rlcorr.masked import masked_mean
from rlcorr.prefix_gap import prefix_parts
from rlcorr.ratios import over_sequence, ratio
from rlcorr.rejection import PROBABILITY_FLOOR, SIGNED_KL_FLOOR, coins, inside, log_bounds, passes, rule_statistic
from rlcorr.rules import OF_PREFIXES, RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch

RowOrder = Literal["off", "recorded", "lowest", "highest", "rejected"]
"""Of responses: furthest mean log-ratio first, as recorded, by reward from either end, largest share of rejected tokens
first."""


@dataclass(frozen=True)
class RuleStory:
    """What one rule saw of the token."""

    rule: RejectionRule
    token_value: float
    """The divergence of this token alone; log r for k1."""
    statistic: float
    """What was compared: the token's value, or its sum, mean, max or min over the sequence; log r for k1."""
    lower: float
    upper: float
    """Bounds on the statistic, ±inf where there is none; for k1 logarithms of the configured ones."""
    inside: bool
    passes: bool
    """Inside, or a token that the rule does not concern."""
    coins: tuple[float, float, float, float] | None
    """Of a binary KL: p, q, log p/q and log (1−p)/(1−q), p of π_old and q of π_rollout, kept off 0 and 1."""
    prefix: tuple[float, float] | None
    """Of prefix_gap: w, and what the tokens before have overspent."""


@dataclass(frozen=True)
class TokenStory:
    """One token of a batch. In bypass mode π_θ stands in for π_old; before the first update the two are the same."""

    row: int
    column: int
    tokens: int
    """Of this response."""
    old_log_prob: float
    rollout_log_prob: float
    old_prob: float
    rollout_prob: float
    log_ratio: float
    ratio: float
    """exp(log_ratio), log_ratio clamped to ±20."""
    log_weight: float
    """Before exp and bounds: the log-ratio, or its sum or mean over the sequence; 0 where no weights are asked for."""
    raw_weight: float
    bounded_weight: float
    weight: float
    """After batch normalisation, if any: what multiplies the loss of a kept token."""
    norm_factor: float | None
    rules: tuple[RuleStory, ...]
    rejected_by: str | None
    """The first rule that objects."""
    advantage: float | None
    contribution: float | None
    """c, with −∇loss = Σ c ∇ log π_θ over the tokens, at π_θ = π_old and without KL terms. None without advantages, and
    for losses that compare a batch (clip_cov, kl_cov)."""
    counted: int
    """Tokens over which the loss is averaged."""


def token_story(
    batch: TokenBatch,
    result: CorrectionResult,
    config: CorrectionConfig,
    row: int,
    column: int,
    loss: LossConfig | None = None,
) -> TokenStory:
    """All of them for the token at (row, column); `result` is `correct(batch, config)`, `loss` the default one. Raises
    `UsageError` where there is no such token, or no π_old."""
    _check_place(batch, config, row, column)
    place, here = (0, column), slice(row, row + 1)
    one, of_row = batch.rows(here), result.rows(here)
    d = of_row.log_ratio
    log_w, bounded = _weights(one, d, config)
    old, rollout = old_log_probs(batch)[row, column].double(), batch.rollout_log_probs[row, column].double()
    rejected = int(of_row.rejected_by[place])
    counted = batch.response_mask if config.denominator == "fixed" else result.keep_mask
    return TokenStory(
        row=row,
        column=column,
        tokens=int(one.response_mask.sum()),
        old_log_prob=float(old),
        rollout_log_prob=float(rollout),
        old_prob=float(old.exp()),
        rollout_prob=float(rollout.exp()),
        log_ratio=float(d[place]),
        ratio=float(ratio(d)[place]),
        log_weight=float(log_w[place]),
        raw_weight=float(ratio(log_w)[place]),
        bounded_weight=float(bounded[place]),
        weight=float(of_row.weights[place]),
        norm_factor=None if result.norm_factor is None else float(result.norm_factor),
        rules=tuple(_rule_story(rule, one, d, column) for rule in config.rollout_rs),
        rejected_by=config.rollout_rs[rejected - 1].name if rejected else None,
        advantage=None if batch.advantages is None else float(batch.advantages[row, column]),
        contribution=_contribution(batch, result, config, loss or LossConfig(), row, column),
        counted=int(counted.sum()),
    )


def _check_place(batch: TokenBatch, config: CorrectionConfig, row: int, column: int) -> None:
    require(batch, config)
    rows, columns = batch.response_mask.shape
    if not 0 <= row < rows:
        raise UsageError(f"there is no response {row}; the batch has {rows}, counted from 0.")
    if not (0 <= column < columns and batch.response_mask[row, column]):
        raise UsageError(f"response {row} has no token {column}; it has {int(batch.response_mask[row].sum())}.")


def _weights(one: TokenBatch, d: Tensor, config: CorrectionConfig) -> tuple[Tensor, Tensor]:
    """log w before its bounds, and w within them, (1, T) each; 0 and 1 where no weights are asked for."""
    if config.rollout_is is None:
        return torch.zeros_like(d), torch.ones_like(d)
    log_w = log_weights(d, one.response_mask, config.rollout_is).expand_as(d)
    return log_w, bound_weights(log_w, config)


def _rule_story(rule: RejectionRule, one: TokenBatch, d: Tensor, column: int) -> RuleStory:
    """`one` is a batch of one row."""
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
        coins=_coins(rule, one, column),
        prefix=_prefix(rule, one, column),
    )


def _prefix(rule: RejectionRule, one: TokenBatch, column: int) -> tuple[float, float] | None:
    if rule.divergence not in OF_PREFIXES or one.old_log_probs is None:
        return None
    w, _, overspent = prefix_parts(one.old_log_probs, one.rollout_log_probs, one.response_mask)
    return float(w[0, column]), float(overspent[0, column])


def _coins(rule: RejectionRule, one: TokenBatch, column: int) -> tuple[float, float, float, float] | None:
    floors = {"binary_kl": PROBABILITY_FLOOR, "forward_kl": PROBABILITY_FLOOR, "signed_kl": SIGNED_KL_FLOOR}
    if rule.divergence not in floors or one.old_log_probs is None:
        return None
    pair = one.old_log_probs[0, column], one.rollout_log_probs[0, column]
    p, q, token, rest = (float(x) for x in coins(*pair, floors[rule.divergence]))
    return p, q, token, rest


def _contribution(
    batch: TokenBatch,
    result: CorrectionResult,
    config: CorrectionConfig,
    loss: LossConfig,
    row: int,
    column: int,
) -> float | None:
    if batch.advantages is None or config.loss_type in ("clip_cov", "kl_cov"):
        return None
    loss = replace(loss, use_kl_loss=False, use_rollout_kl_loss=False)
    return float(score_coefficients(old_log_probs(batch), batch, result, config, loss)[row, column])


# --- which responses, in which order, in which colours ---


def ordered_rows(batch: TokenBatch, result: CorrectionResult, order: RowOrder) -> list[int]:
    """Every row once; equal ones as recorded, NaN before all numbers. Raises `UsageError` for an unknown order, or
    one by rewards where there are none."""
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
    """The geometric mean of the ratios of each response, exp of its mean log r."""
    return ratio(over_sequence(result.log_ratio, batch.response_mask, "mean")).tolist()


def furthest_token(batch: TokenBatch, result: CorrectionResult, rows: Sequence[int]) -> tuple[int, int] | None:
    """(row, column) of the largest |log r| in these rows; None if they have no token."""
    mask = batch.response_mask[list(rows)]
    if not mask.any():
        return None
    size = torch.where(mask, result.log_ratio[list(rows)].abs().nan_to_num(torch.inf), -1)
    where = int(size.argmax())
    return rows[where // mask.shape[1]], where % mask.shape[1]
