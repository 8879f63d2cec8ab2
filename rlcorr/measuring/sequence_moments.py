"""The first stage of measuring: one pass over the tokens (B, T) gives moments per sequence, each of shape (B,).

Of ratios and weights r − 1 is measured too: the spread of a small mismatch would drown in the rounding of 1 + r².
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import bound_weights, log_weights, old_log_probs
from rlcorr.masked import tally
from rlcorr.measuring.moments import Moments, moments, shares
from rlcorr.measuring.quantities import Quantity, RuleQuantity
from rlcorr.ratios import excess, k3, ratio
from rlcorr.rejection import inside, log_bounds, passes, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch

Named = dict[Quantity, Moments]
NamedOfRule = dict[RuleQuantity, Moments]


@dataclass(frozen=True)
class SequenceMoments:
    """Moments of every sequence, of shape (B,)."""

    of_batch: Named
    of_rules: dict[str, NamedOfRule]  # by the rule's name


def joined(parts: list[SequenceMoments]) -> SequenceMoments:
    """The moments of several groups of rows as those of one.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 3, 5), torch.ones(3, 5))
    >>> d = torch.zeros(3, 5)
    >>> parts = [SequenceMoments(pair_moments(batch.rows(r), d[r]), {}) for r in (slice(0, 1), slice(1, 3))]
    >>> joined(parts).of_batch["d"].count.tolist()
    [5.0, 5.0, 5.0]
    """
    first = parts[0]
    return SequenceMoments(
        {name: _concatenated([part.of_batch[name] for part in parts]) for name in first.of_batch},
        {
            rule: {name: _concatenated([part.of_rules[rule][name] for part in parts]) for name in of_rule}
            for rule, of_rule in first.of_rules.items()
        },
    )


def _concatenated(parts: list[Moments]) -> Moments:
    names = ("count", "total", "squares", "low", "high")
    return Moments(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def pair_moments(batch: TokenBatch, d: Tensor) -> Named:
    """The part of the pass over (B, T) that looks at the log-probs alone; d is their log-ratio.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> d = torch.tensor([[0.0, 2.0]])
    >>> pair_moments(batch, d)["abs_d"].high.tolist()
    [2.0]
    """
    divergence = k3(d)
    of_tokens = partial(moments, mask=batch.response_mask, count=tally(batch.response_mask))
    return {
        "training_log_prob": of_tokens(old_log_probs(batch).to(d.dtype), squares=False, extremes=False),
        "rollout_log_prob": of_tokens(batch.rollout_log_probs.to(d.dtype), squares=False, extremes=False),
        "d": of_tokens(d),
        "abs_d": of_tokens(d.abs()),
        "k3": of_tokens(divergence, squares=False, extremes=False),
        "ratio": of_tokens(ratio(d)),
        "ratio_excess": of_tokens(excess(d, divergence), extremes=False),
    }


def correction_moments(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> SequenceMoments:
    """The part that looks at weights and rejections; `result` before or after normalisation. Comparisons with bounds
    happen here, in the dtype in which the correction made them.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> config = CorrectionConfig(rollout_is="token")  # weights of 1, and of e² cut to 2
    >>> correction_moments(batch, correct(batch, config), config).of_batch["weight"].total.tolist()
    [3.0]
    """
    mask, keep, d = batch.response_mask, result.keep_mask, result.log_ratio
    weights = result.weights if result.norm_factor is None else result.weights * result.norm_factor
    of_batch: Named = {}
    if config.rollout_is == "token":
        of_batch |= _of_weights(weights, d, mask, config)
    elif config.rollout_is is not None:
        log_w = log_weights(d, mask, config.rollout_is)
        of_batch |= _of_weights(bound_weights(log_w, config), log_w, _has_tokens(mask), config)
        of_batch["log_weight"] = moments(log_w, _has_tokens(mask), squares=False, extremes=False)
    if not (result.only_by_rules and whole_sequences(config)):
        of_batch |= {"kept": shares(keep, mask), "trained": moments(weights, keep, extremes=False)}
    return SequenceMoments(of_batch, {rule.name: _of_rule(rule, batch, d) for rule in config.rollout_rs})


def _of_weights(weights: Tensor, log_raw: Tensor, real: Tensor, config: CorrectionConfig) -> Named:
    """Weights of tokens, or (B, 1) of sequences; without a lower bound verl counts what is below 1/upper."""
    high, lower = math.log(config.rollout_is_threshold), config.rollout_is_threshold_lower
    return {
        "weight": moments(weights, real),
        "weight_excess": moments(weights - 1, real, extremes=False),
        "weight_low": shares(log_raw < (-high if lower is None else math.log(lower)), real),
        "weight_high": shares(log_raw > high, real),
    }


def _of_rule(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> NamedOfRule:
    statistic = rule_statistic(rule, batch, d)
    mask = batch.response_mask
    real = mask if rule.level == "token" else _has_tokens(mask)
    low, high = log_bounds(rule)
    of_rule: NamedOfRule = {
        "statistic": moments(statistic, real),
        "clamped": moments(statistic.clamp(low, high), real, extremes=False),
        "low": shares(statistic < low, real),
        "high": shares(statistic > high, real),
    }
    if rule.level == "sequence" and rule.applies_to == "all":
        of_rule["outside"] = shares(~inside(rule, statistic), real)
    else:
        of_rule["rejected"] = shares(~passes(rule, statistic, batch, d), mask)
    return of_rule


def _has_tokens(mask: Tensor) -> Tensor:
    """(B, T) → (B, 1): whether the row has a token."""
    return tally(mask)[:, None] > 0


def whole_sequences(config: CorrectionConfig) -> bool:
    """Whether rows are kept or rejected as a whole, so that their tokens need not be looked at.

    >>> whole_sequences(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", upper=1.1),)))
    True
    >>> whole_sequences(CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=1.1),)))
    False
    """
    return all(rule.level == "sequence" and rule.applies_to == "all" for rule in config.rollout_rs)
