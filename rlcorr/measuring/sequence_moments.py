"""The first stage of measuring: one pass over the tokens (B, T) computes moments per sequence, each of shape (B,).

Of ratios r and weights, r − 1 is measured as well. If the mismatch is small, the sum of r² ≈ 1 would lose the spread to
rounding.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlcorr.config import PER_TOKEN, CorrectionConfig
from rlcorr.correction import bound_weights, log_weights, old_log_probs
from rlcorr.masked import count_true
from rlcorr.measuring.moments import COLUMNS, Moments, flag_moments, moments
from rlcorr.measuring.quantities import Quantity, RuleQuantity
from rlcorr.ratios import excess, k3, ratio
from rlcorr.rejection import inside, log_bounds, passes, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch

MomentsByName = dict[Quantity, Moments]
RuleMoments = dict[RuleQuantity, Moments]


@dataclass(frozen=True)
class SequenceMoments:
    """Moments per sequence, each of shape (B,)."""

    quantities: MomentsByName
    rule_quantities: dict[str, RuleMoments]  # name of the rule → its moments


def concat_moments(parts: list[SequenceMoments]) -> SequenceMoments:
    """Concatenate the moments of several groups of rows.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 3, 5), torch.ones(3, 5))
    >>> d = torch.zeros(3, 5)
    >>> parts = [SequenceMoments(pair_moments(batch.rows(r), d[r]), {}) for r in (slice(0, 1), slice(1, 3))]
    >>> concat_moments(parts).quantities["d"].count.tolist()
    [5.0, 5.0, 5.0]
    """
    first = parts[0]
    return SequenceMoments(
        {name: _concat([part.quantities[name] for part in parts]) for name in first.quantities},
        {
            rule: {name: _concat([part.rule_quantities[rule][name] for part in parts]) for name in by_name}
            for rule, by_name in first.rule_quantities.items()
        },
    )


def _concat(parts: list[Moments]) -> Moments:
    return Moments(*(torch.cat([getattr(part, column) for part in parts]) for column in COLUMNS))


def pair_moments(batch: TokenBatch, d: Tensor) -> MomentsByName:
    """Compute the moments that depend on the log-probs only, not on the correction; d (B, T) is their log-ratio.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> d = torch.tensor([[0.0, 2.0]])
    >>> pair_moments(batch, d)["abs_d"].high.tolist()
    [2.0]
    """
    divergence = k3(d)
    token_moments = partial(moments, mask=batch.response_mask, count=count_true(batch.response_mask))
    return {
        "training_log_prob": token_moments(old_log_probs(batch).to(d.dtype), squares=False, extremes=False),
        "rollout_log_prob": token_moments(batch.rollout_log_probs.to(d.dtype), squares=False, extremes=False),
        "d": token_moments(d),
        "abs_d": token_moments(d.abs()),
        "k3": token_moments(divergence, squares=False, extremes=False),
        "ratio": token_moments(ratio(d)),
        "ratio_excess": token_moments(excess(d, divergence), extremes=False),
    }


def correction_moments(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> SequenceMoments:
    """Compute the moments of weights and rejections, from a result before or after batch normalisation.

    Comparisons with bounds are made here, in the dtype in which the correction made them.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> config = CorrectionConfig(rollout_is="token")  # weights of 1, and of e² cut to 2
    >>> correction_moments(batch, correct(batch, config), config).quantities["weight"].total.tolist()
    [3.0]
    """
    mask, keep, d = batch.response_mask, result.keep_mask, result.log_ratio
    weights = result.weights if result.norm_factor is None else result.weights * result.norm_factor
    quantities: MomentsByName = {}
    if config.rollout_is in PER_TOKEN:
        log_w = log_weights(d, mask, config.rollout_is)
        quantities |= _weight_moments(weights, log_w, mask, config)
        if config.rollout_is == "prefix":  # at token level these are the moments of the ratios
            quantities["raw_weight"] = moments(ratio(log_w), mask)
            quantities["raw_weight_excess"] = moments(excess(log_w), mask, extremes=False)
    elif config.rollout_is is not None:
        log_w = log_weights(d, mask, config.rollout_is)
        quantities |= _weight_moments(bound_weights(log_w, config), log_w, _has_tokens(mask), config)
        quantities["log_weight"] = moments(log_w, _has_tokens(mask), squares=False, extremes=False)
    if not (result.only_by_rules and whole_sequences(config)):
        quantities |= {"kept": flag_moments(keep, mask), "trained": moments(weights, keep, extremes=False)}
    return SequenceMoments(quantities, {rule.name: _rule_moments(rule, batch, d) for rule in config.rollout_rs})


def _weight_moments(weights: Tensor, log_raw: Tensor, real: Tensor, config: CorrectionConfig) -> MomentsByName:
    """Compute the moments of token weights (B, T) or sequence weights (B, 1).

    Without a lower bound, weights below 1/upper count as low, as in verl.
    """
    high, lower = math.log(config.rollout_is_threshold), config.rollout_is_threshold_lower
    return {
        "weight": moments(weights, real),
        "weight_excess": moments(weights - 1, real, extremes=False),
        "weight_low": flag_moments(log_raw < (-high if lower is None else math.log(lower)), real),
        "weight_high": flag_moments(log_raw > high, real),
    }


def _rule_moments(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> RuleMoments:
    statistic = rule_statistic(rule, batch, d)
    mask = batch.response_mask
    real = mask if rule.level == "token" else _has_tokens(mask)
    low, high = log_bounds(rule)
    quantities: RuleMoments = {
        "statistic": moments(statistic, real),
        "clamped": moments(statistic.clamp(low, high), real, extremes=False),
        "low": flag_moments(statistic < low, real),
        "high": flag_moments(statistic > high, real),
    }
    if rule.level == "sequence" and rule.applies_to == "all":
        quantities["outside"] = flag_moments(~inside(rule, statistic), real)
    else:
        quantities["rejected"] = flag_moments(~passes(rule, statistic, batch, d), mask)
    return quantities


def _has_tokens(mask: Tensor) -> Tensor:
    """Check whether each row has a token, (B, T) → (B, 1)."""
    return count_true(mask)[:, None] > 0


def whole_sequences(config: CorrectionConfig) -> bool:
    """Check whether every rule keeps or rejects whole rows, so that single tokens need not be measured.

    >>> whole_sequences(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", upper=1.1),)))
    True
    >>> whole_sequences(CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=1.1),)))
    False
    """
    return all(rule.level == "sequence" and rule.applies_to == "all" for rule in config.rollout_rs)
