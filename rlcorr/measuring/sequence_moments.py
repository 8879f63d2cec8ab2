"""The first stage of measuring: one pass over the tokens (B, T) computes moments per sequence, each of shape (B,).

Of ratios r and weights, r − 1 is measured as well. If the mismatch is small, the sum of r² ≈ 1 would lose the spread to
rounding.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rlcorr.config import PER_TOKEN, CorrectionConfig
from rlcorr.correction import bound_weights, log_weights, old_log_probs
from rlcorr.masked import count_true
from rlcorr.measuring.moments import COLUMNS, Moments, flag_moments, masked_min, moments, stacked, unstacked
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


def concat_moments(parts: Sequence[SequenceMoments]) -> SequenceMoments:
    """Concatenate the moments of several groups of rows, in float64.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 3, 5), torch.ones(3, 5))
    >>> d = torch.zeros(3, 5)
    >>> parts = [SequenceMoments(pair_moments(batch.rows(r), d[r]), {}) for r in (slice(0, 1), slice(1, 3))]
    >>> concat_moments(parts).quantities["d"].count.tolist()
    [5.0, 5.0, 5.0]
    """
    tables = [stacked(_listed(part)) for part in parts]  # one step for all quantities, because small steps take long
    table = Moments(*(torch.cat([getattr(table, column) for table in tables], -1).double() for column in COLUMNS))
    quantities = iter(unstacked(table))
    return SequenceMoments(
        dict(zip(parts[0].quantities, quantities, strict=False)),
        {rule: dict(zip(by_name, quantities, strict=False)) for rule, by_name in parts[0].rule_quantities.items()},
    )


def _listed(sequences: SequenceMoments) -> list[Moments]:
    of_rules = (by_name.values() for by_name in sequences.rule_quantities.values())
    return [*sequences.quantities.values(), *itertools.chain.from_iterable(of_rules)]


def pair_moments(batch: TokenBatch, d: Tensor) -> MomentsByName:
    """Compute the moments that depend on the log-probs only, not on the correction.

    d (B, T) is their log-ratio, 0 on padding.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2))
    >>> d = torch.tensor([[0.0, 2.0]])
    >>> pair_moments(batch, d)["abs_d"].high.tolist()
    [2.0]
    """
    mask, count = batch.response_mask, count_true(batch.response_mask)
    sums = partial(moments, mask=mask, count=count, squares=False, extremes=False)
    divergence, size = k3(d), d.abs()
    log_ratios = moments(d, mask, count=count, zeroed=True)
    farthest = torch.maximum(-log_ratios.low, log_ratios.high)
    return {
        "training_log_prob": sums(old_log_probs(batch).to(d.dtype)),
        "rollout_log_prob": sums(batch.rollout_log_probs.to(d.dtype)),
        "d": log_ratios,
        "abs_d": Moments(count, size.sum(-1), log_ratios.squares, masked_min(size, mask), farthest),
        "k3": sums(divergence, zeroed=True),
        "ratio": _ratio_moments(d, mask, log_ratios),
        "ratio_excess": sums(excess(d, divergence), squares=True, zeroed=True),
    }


def _ratio_moments(d: Tensor, mask: Tensor, log_ratios: Moments) -> Moments:
    """Compute the moments of r. Its extremes are the ratios of the extremes of d."""
    sums = moments(ratio(d), mask, extremes=False, count=log_ratios.count)
    real = sums.count > 0
    low, high = ratio(log_ratios.low), ratio(log_ratios.high)
    return replace(sums, low=torch.where(real, low, torch.inf), high=torch.where(real, high, -torch.inf))


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
    tokens = Counted(mask, count_true(mask))
    rows = tokens.rows()
    if config.rollout_is in PER_TOKEN:
        log_w = log_weights(d, mask, config.rollout_is)
        quantities |= _weight_moments(weights, log_w, tokens, config)
        if config.rollout_is == "prefix":  # at token level these are the moments of the ratios
            quantities["raw_weight"] = tokens.moments(ratio(log_w))
            quantities["raw_weight_excess"] = tokens.moments(excess(log_w), extremes=False)
    elif config.rollout_is is not None:
        log_w = log_weights(d, mask, config.rollout_is)
        quantities |= _weight_moments(bound_weights(log_w, config), log_w, rows, config)
        quantities["log_weight"] = rows.moments(log_w, squares=False, extremes=False)
    if not (result.only_by_rules and whole_sequences(config)):
        quantities |= {"kept": tokens.flags(keep), "trained": moments(weights, keep, extremes=False)}
    of_rules = {rule.name: _rule_moments(rule, batch, d, tokens, rows) for rule in config.rollout_rs}
    return SequenceMoments(quantities, of_rules)


@dataclass(frozen=True)
class Counted:
    """A mask, of tokens (B, T) or of rows (B, 1), and how many are True in each row."""

    mask: Tensor
    count: Tensor  # (B,)

    def rows(self) -> "Counted":
        """Return which rows have a token."""
        real = self.count > 0
        return Counted(real[:, None], real.to(torch.float32))

    def moments(self, x: Tensor, *, squares: bool = True, extremes: bool = True) -> Moments:
        return moments(x, self.mask, squares=squares, extremes=extremes, count=self.count)

    def flags(self, condition: Tensor) -> Moments:
        return flag_moments(condition, self.mask, count=self.count)


def _weight_moments(weights: Tensor, log_raw: Tensor, real: Counted, config: CorrectionConfig) -> MomentsByName:
    """Compute the moments of token weights (B, T) or sequence weights (B, 1).

    Without a lower bound, weights below 1/upper count as low, as in verl.
    """
    high, lower = math.log(config.rollout_is_threshold), config.rollout_is_threshold_lower
    return {
        "weight": real.moments(weights),
        "weight_excess": real.moments(weights - 1, extremes=False),
        "weight_low": real.flags(log_raw < (-high if lower is None else math.log(lower))),
        "weight_high": real.flags(log_raw > high),
    }


def _rule_moments(rule: RejectionRule, batch: TokenBatch, d: Tensor, tokens: Counted, rows: Counted) -> RuleMoments:
    statistic = rule_statistic(rule, batch, d)
    real = tokens if rule.level == "token" else rows
    low, high = log_bounds(rule)
    quantities: RuleMoments = {
        "statistic": real.moments(statistic),
        "clamped": real.moments(statistic.clamp(low, high), extremes=False),
        "low": real.flags(statistic < low),
        "high": real.flags(statistic > high),
    }
    if rule.level == "sequence" and rule.applies_to == "all":
        quantities["outside"] = real.flags(~inside(rule, statistic))
    else:
        quantities["rejected"] = tokens.flags(~passes(rule, statistic, batch, d))
    return quantities


def whole_sequences(config: CorrectionConfig) -> bool:
    """Check whether every rule keeps or rejects whole rows, so that single tokens need not be measured.

    >>> whole_sequences(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", upper=1.1),)))
    True
    >>> whole_sequences(CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=1.1),)))
    False
    """
    return all(rule.level == "sequence" and rule.applies_to == "all" for rule in config.rollout_rs)
