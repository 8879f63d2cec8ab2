"""One token under a correction: every number that the library used for it, and the formulas that gave these numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rlcorr.config import UNCLIPPED, CorrectionConfig, LossConfig
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.losses.objective import score_coefficients
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.masked import masked_mean
from rlcorr.ratios import SAFETY_BOUND, over_sequence, ratio
from rlcorr.rules import RejectionRule, inside, passes, rule_statistic
from rlcorr.types import CorrectionResult, TokenBatch

RowOrder = Literal["off", "recorded", "lowest", "highest", "rejected"]
"""Order of responses. `off`: largest |mean log-ratio| first; `recorded`; `lowest` and `highest`: by reward; `rejected`:
largest share of rejected tokens first."""


@dataclass(frozen=True)
class RuleStory:
    """The numbers of one rule for the token."""

    rule: RejectionRule
    statistic: float
    """The compared statistic: the value of the token, or its sum, mean, max or min over the sequence; log r for k1."""
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
    """Return all numbers of the token at (row, column). `result` must be `correct(batch, config)`."""
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


def _weights(one: TokenBatch, d: Tensor, config: CorrectionConfig) -> tuple[Tensor, Tensor]:
    """Return log w before its bounds and w within them, (1, T) each; 0 and 1 without weights."""
    if config.weights is None:
        return torch.zeros_like(d), torch.ones_like(d)
    log_w = config.weights.raw(d, one.response_mask).expand_as(d)
    return log_w, config.weights.bounded(log_w)


def _rule_story(rule: RejectionRule, one: TokenBatch, d: Tensor, column: int) -> RuleStory:
    """Return the numbers of one rule. `one` is a batch of one row."""
    statistic = rule_statistic(rule, one, d).expand_as(d)
    return RuleStory(
        rule=rule,
        statistic=float(statistic[0, column]),
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


# --- the formulas, with the numbers of the token ---

_RAW_WEIGHTS = {
    "token": "r",
    "sequence": "product of r",
    "geometric": "geometric mean of r",
    "prefix": "product of r up to here",
}


def digits(x: float) -> str:
    """Return x with four significant digits.

    >>> [digits(x) for x in (-1.20397, 2.0, -0.0, 12345.0, 4.2e-9, -math.inf, math.nan)]
    ['−1.204', '2', '0', '1.234e4', '4.2e−9', '−∞', 'nan']
    """
    text = f"{x + 0.0:.4g}"  # −0 is 0
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−").replace("inf", "∞")


def formulas(story: TokenStory, config: CorrectionConfig) -> list[str]:
    """Write one line for the ratio, the weight, every rule, and the contribution to the gradient, in this order.

    Numbers have four significant digits and bounds are written as configured, so the left side of a line, typed into a
    calculator, gives the right side up to rounding. `config` must be that of the story.
    """
    lines = [_ratio_line(story), _weight_line(story, config), *(_rule_line(rule) for rule in story.rules)]
    return lines if story.contribution is None else [*lines, _contribution_line(story, config)]


def _ratio_line(story: TokenStory) -> str:
    difference = f"{digits(story.old_log_prob)} − {_bracketed(story.rollout_log_prob)}"
    clamped = f" = exp({digits(math.copysign(SAFETY_BOUND, story.log_ratio))})"
    line = f"r = exp({difference}){clamped if abs(story.log_ratio) > SAFETY_BOUND else ''} = {digits(story.ratio)}"
    if story.sampled_log_prob is None:
        return line
    engine = _exp(story.sampled_log_prob - story.rollout_log_prob)
    age = _exp(story.old_log_prob - story.sampled_log_prob)
    return f"{line}   ({digits(engine)} of the engine · {digits(age)} of the age)"


def _weight_line(story: TokenStory, config: CorrectionConfig) -> str:
    if config.rollout_is is None:
        return "w = 1   (no importance weights)"
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    raw, bounded, name = digits(story.raw_weight), digits(story.bounded_weight), _RAW_WEIGHTS[config.rollout_is]
    note = "" if config.rollout_is == "token" else f"   ({name} = {raw})"
    if config.rollout_is_mode == "mask":
        line = f"{raw}, {_verdict(lower, upper, story.bounded_weight > 0)}, so w = {bounded}"
    else:
        capped = raw if upper == math.inf else f"min({raw}, {_bound(upper)})"
        expression = capped if lower is None else f"max({_bound(lower)}, {capped})"
        line = f"w = {raw}" if expression == raw else f"w = {expression} = {bounded}"
    if story.norm_factor is not None:
        line += f"; w/mean of w = {bounded}/{digits(story.norm_factor)} = {digits(story.weight)}"
    return line + note


def _rule_line(story: RuleStory) -> str:
    rule = story.rule
    value = _exp(story.statistic, 700.0) if rule.divergence == "k1" else story.statistic
    skipped = ", but the rule skips this token" if story.passes and not story.inside else ""
    return f"{rule.name} = {digits(value)}, {_verdict(rule.lower, rule.upper, story.inside)}{skipped}"


def _contribution_line(story: TokenStory, config: CorrectionConfig) -> str:
    """Write c = w·A/N, for a mean over tokens at π_θ = π_old.

    In bypass mode the ratio r = π_θ/π_rollout of the loss replaces w.
    """
    c, advantage = story.contribution, story.advantage
    assert c is not None
    assert advantage is not None
    if story.rejected_by is not None:
        return "c = 0   (rejected)"
    ratio_in_loss = config.bypass_mode and config.loss_type not in UNCLIPPED
    symbol, factor = ("r", story.ratio) if ratio_in_loss else ("w", story.weight)
    if math.isclose(factor * advantage / max(story.counted, 1), c, rel_tol=1e-3):
        return f"c = {symbol}·A/N = {digits(factor)}·{_bracketed(advantage)}/{story.counted} = {digits(c)}"
    if c == 0:
        return f"c = 0   (the clip of {config.loss_type} removes the gradient)"
    return f"c = {digits(c)}   (from the loss {config.loss_type})"


def _verdict(lower: float | None, upper: float, inside: bool) -> str:
    if lower is None:
        allowed = f"at most {_bound(upper)}"
    else:
        allowed = f"at least {_bound(lower)}" if upper == math.inf else f"{_bound(lower)} to {_bound(upper)}"
    return f"allowed {allowed}: {'inside' if inside else 'outside'}"


def _bound(x: float) -> str:
    return f"{x:g}".replace("-", "−")


def _exp(x: float, limit: float = SAFETY_BOUND) -> float:
    return math.exp(min(max(x, -limit), limit))  # NaN stays NaN


def _bracketed(x: float) -> str:
    return f"({digits(x)})" if x < 0 else digits(x)


# --- the order of responses ---


def ordered_rows(batch: TokenBatch, result: CorrectionResult, order: RowOrder) -> list[int]:
    """Return every row once, in this order. Equal rows stay as recorded, and NaN comes first.

    Raises `UsageError` for an order by rewards without rewards.
    """
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
