"""One batch, corrected and measured as verl's helper does: what its metrics read, in one table from the device."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, WeightLevel
from rlcorr.correction import correct, old_log_probs, weight_votes
from rlcorr.masked import masked_mean
from rlcorr.measuring.compiled import can_compile, correct_and_measure
from rlcorr.measuring.measure import measure
from rlcorr.measuring.moments import Measured, Moments, RuleMoment
from rlcorr.measuring.statistics import Numbers
from rlcorr.ratios import SAFETY_BOUND, log_ratio
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl import helper_metrics
from rlcorr.types import CorrectionResult, TokenBatch

COMPILED_FROM = 1 << 18
"""Positions from which the compiled pass pays for itself."""


@dataclass(frozen=True)
class Seen:
    """What was decided about a batch, and the numbers of it."""

    mask: Tensor  # (B, T) bool
    weights: Tensor  # (B, T), 0 on padding
    keep_mask: Tensor  # (B, T) bool
    rules: tuple[RejectionRule, ...]
    of: dict[str, Numbers]
    of_rules: dict[str, dict[str, Numbers]]
    empty: int
    """Rows without a token."""
    k3_kl: float | None
    """Of log-ratios that are not clamped, where one is beyond ±20."""

    @classmethod
    def of_pair(
        cls, old: Tensor, rollout: Tensor, mask: Tensor, config: CorrectionConfig, rules: tuple[RejectionRule, ...]
    ) -> "Seen":
        """Weights by `config`, rejection by `rules`. Log-ratios are clamped to ±20 before a rule adds them, and are not
        before a product of weights is taken, as in verl."""
        dtype = torch.promote_types(old.dtype, rollout.dtype)
        batch = TokenBatch(mask.bool(), rollout.detach().to(dtype), old_log_probs=old.detach().to(dtype))
        result, measured = _pass(batch, replace(config, rollout_rs=rules))
        of, of_rules = _columns(measured)
        k3_kl = None
        if of["d"].count and not of["abs_d"].high <= SAFETY_BOUND:
            d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask)
            k3_kl = float(masked_mean(d.exp() - d - 1, batch.response_mask))
            if rules:
                result, of, of_rules = _clamped(batch, d, config, rules)
        rows = len(mask) - int(of["seq_excess"].count)
        return cls(batch.response_mask, result.weights, result.keep_mask, rules, of, of_rules, rows, k3_kl)

    def kept(self, response_mask: Tensor) -> Tensor:
        """The mask, of its own dtype, without what was rejected."""
        return (response_mask * self.keep_mask).to(response_mask.dtype) if self.rules else response_mask.clone()

    def rejection(self) -> dict[str, float]:
        """Metrics of every rule, and of all together."""
        report = {}
        for rule in self.rules:
            report |= helper_metrics.of_rule(self.of_rules[rule.name], rule, rule.name)
        return report | helper_metrics.of_rejection(self.of, self.empty)


def _pass(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, Measured]:
    if batch.response_mask.numel() >= COMPILED_FROM and can_compile(batch.response_mask.device):
        return correct_and_measure(batch, config)
    result = correct(batch, config)
    return result, measure(batch, result, config)


def _clamped(
    batch: TokenBatch, d: Tensor, config: CorrectionConfig, rules: tuple[RejectionRule, ...]
) -> tuple[CorrectionResult, dict[str, Numbers], dict[str, dict[str, Numbers]]]:
    """Rules on clamped log-ratios, everything else on the log-ratios as they are."""
    tame = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)
    by_rules = CorrectionConfig(rollout_rs=rules)
    pair = TokenBatch(batch.response_mask, torch.zeros_like(tame), old_log_probs=tame)
    rejected = correct(pair, by_rules)
    of_clamped, of_rules = _columns(measure(pair, rejected, by_rules))
    weighted = correct(batch, config)
    of, _ = _columns(measure(batch, weighted, config))
    of |= {name: of_clamped[name] for name in ("rejected", "seq_rejected")}
    return replace(weighted, keep_mask=rejected.keep_mask), of, of_rules


def _columns(measured: Measured) -> tuple[dict[str, Numbers], dict[str, dict[str, Numbers]]]:
    """By name, of the batch and of each rule. This is where the device is waited for."""
    of: dict[str, Numbers] = {}
    of_rules: dict[str, dict[str, Numbers]] = {}
    for name, row in measured.rows():
        if isinstance(name, RuleMoment):
            of_rules.setdefault(name.rule, {})[name.quantity] = Numbers(*row)
        else:
            of[name] = Numbers(*row)
    if "weight" in of:  # the weights are bounded already
        of |= {"bounded": of["weight"], "bounded_excess": of["weight_excess"]}
    return of, of_rules


def numbers(columns: Mapping[str, Moments]) -> dict[str, Numbers]:
    """Moments of shape () on the host, in one copy."""
    rows = Measured.of({name: of.double() for name, of in columns.items()}).rows()
    return {str(name): Numbers(*row) for name, row in rows}


def normalised(weights: Tensor, mask: Tensor, level: WeightLevel) -> tuple[Tensor, float]:
    """The weights divided by their mean over all tokens or, of sequences, over all rows, rejected ones included; and
    that mean. Over all ranks, where there are several."""
    votes = torch.stack([x.double().sum() for x in weight_votes(weights, mask, level)])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(votes)
    mean = float(votes[0] / votes[1]) if votes[1] > 0 else 0.0
    factor = mean if mean > 1e-8 and not math.isnan(mean) else 1.0
    return weights / factor, factor
