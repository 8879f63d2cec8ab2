"""One batch, corrected and measured as verl's helper does. One table from the device has all that its metrics read."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct, norm_factor_sums
from rlcorr.masked import masked_mean
from rlcorr.measuring.compiled import FUSE, can_compile, one_pass
from rlcorr.measuring.measure import measure
from rlcorr.measuring.moments import Moments, MomentTable, RuleKey
from rlcorr.measuring.statistics import HostMoments
from rlcorr.ratios import SAFETY_BOUND, log_ratio
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl import helper_metrics
from rlcorr.types import CorrectionResult, TokenBatch
from rlcorr.weights import LEVELS

COMPILED_FROM = 1 << 18
"""From this many positions on, the compiled pass is faster, with the time to compile it."""


@dataclass(frozen=True)
class HelperResult:
    """The weights and rejections of a batch, and its moments."""

    mask: Tensor  # (B, T) verl's mask
    weights: Tensor  # (B, T), 0 on padding
    kept: Tensor  # (B, T) the mask without the rejected tokens, in the dtype of verl's mask
    rules: tuple[RejectionRule, ...]
    moments: dict[str, HostMoments]
    """Quantity → its moments over the batch."""
    rule_moments: dict[str, dict[str, HostMoments]]
    """Rule → quantity → its moments."""
    empty_rows: int
    """Number of rows without a token."""
    k3_kl: float | None
    """k3 of log-ratios that are not clamped, if one of them is beyond ±20; else None."""

    @classmethod
    def from_log_probs(
        cls, old: Tensor, rollout: Tensor, mask: Tensor, config: CorrectionConfig, rules: tuple[RejectionRule, ...]
    ) -> "HelperResult":
        """Correct log-probs (B, T): weights by `config`, rejection by `rules`.

        As in verl, log-ratios are clamped to ±20 before a rule adds them, but not for the product of a sequence's
        weights.
        """
        dtype = torch.promote_types(old.dtype, rollout.dtype)
        pair = old.detach().to(dtype), rollout.detach().to(dtype)
        compiled = mask.numel() >= COMPILED_FROM and can_compile(mask.device)
        both = replace(config, rollout_rs=rules)
        weights, kept, measured = (_fused() if compiled else _correct_and_measure)(*pair, mask, both)
        moments, rule_moments = _host_moments(measured)
        k3_kl = None
        if moments["d"].count and not moments["abs_d"].high <= SAFETY_BOUND:  # `not <=` so that NaN counts as beyond
            d = log_ratio(*pair, mask.bool())
            k3_kl = float(masked_mean(d.exp() - d - 1, mask.bool()))
            if rules:
                batch = TokenBatch(mask.bool(), pair[1], old_log_probs=pair[0])
                result, moments, rule_moments = _with_clamped_rules(batch, d, config, rules)
                weights, kept = result.weights, mask * result.keep_mask
        empty_rows = len(mask) - int(moments["seq_excess"].count)
        return cls(mask, weights, kept, rules, moments, rule_moments, empty_rows, k3_kl)

    def rejection_metrics(self) -> dict[str, float]:
        """Return the metrics of every rule, and of all rules together."""
        metrics = {}
        for rule in self.rules:
            metrics |= helper_metrics.rule_metrics(self.rule_moments[rule.name], rule, rule.name)
        return metrics | helper_metrics.rejection_metrics(self.moments, self.empty_rows)


def _correct_and_measure(
    old: Tensor, rollout: Tensor, mask: Tensor, config: CorrectionConfig
) -> tuple[Tensor, Tensor, MomentTable]:
    """Return the weights, the mask without the rejected tokens, (B, T) each, and the moments."""
    batch = TokenBatch(mask.bool(), rollout, old_log_probs=old)
    result = correct(batch, config)
    return result.weights, mask * result.keep_mask, measure(batch, result, config)


@functools.cache
def _fused() -> Callable[..., tuple[Tensor, Tensor, MomentTable]]:
    return torch.compile(_in_one_pass, options=FUSE)


def _in_one_pass(
    old: Tensor, rollout: Tensor, mask: Tensor, config: CorrectionConfig
) -> tuple[Tensor, Tensor, MomentTable]:
    """Compute what `_correct_and_measure` does."""
    _, weights, rejected_by, measured = one_pass(TokenBatch(mask.bool(), rollout, old_log_probs=old), config)
    return weights, mask * (rejected_by == 0), measured


def _with_clamped_rules(
    batch: TokenBatch, d: Tensor, config: CorrectionConfig, rules: tuple[RejectionRule, ...]
) -> tuple[CorrectionResult, dict[str, HostMoments], dict[str, dict[str, HostMoments]]]:
    """Apply the rules to clamped log-ratios, and everything else to the log-ratios as they are."""
    clamped = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)
    rules_only = CorrectionConfig(rollout_rs=rules)
    clamped_batch = TokenBatch(batch.response_mask, torch.zeros_like(clamped), old_log_probs=clamped)
    rejected = correct(clamped_batch, rules_only)
    clamped_moments, rule_moments = _host_moments(measure(clamped_batch, rejected, rules_only))
    weighted = correct(batch, config)
    moments, _ = _host_moments(measure(batch, weighted, config))
    moments |= {name: clamped_moments[name] for name in ("rejected", "seq_rejected")}
    return replace(weighted, keep_mask=rejected.keep_mask), moments, rule_moments


def _host_moments(measured: MomentTable) -> tuple[dict[str, HostMoments], dict[str, dict[str, HostMoments]]]:
    """Return the moments by name: of the batch, and of each rule. Waits for the device."""
    moments: dict[str, HostMoments] = {}
    rule_moments: dict[str, dict[str, HostMoments]] = {}
    for name, row in measured.rows():
        if isinstance(name, RuleKey):
            rule_moments.setdefault(name.rule, {})[name.quantity] = HostMoments(*row)
        else:
            moments[name] = HostMoments(*row)
    if "weight" in moments:  # the weights are bounded already
        moments |= {"bounded": moments["weight"], "bounded_excess": moments["weight_excess"]}
    return moments, rule_moments


def to_host(moments: Mapping[str, Moments]) -> dict[str, HostMoments]:
    """Copy moments of shape () to the host, all in one copy."""
    rows = MomentTable.of({name: values.double() for name, values in moments.items()}).rows()
    return {str(name): HostMoments(*row) for name, row in rows}


def normalised(weights: Tensor, mask: Tensor, level: str) -> tuple[Tensor, float]:
    """Return the weights (B, T) divided by their mean, and this mean.

    The mean is over all tokens, for sequence weights over all rows, including the rejected ones. With several ranks it
    is over all of them.
    """
    sums = torch.stack([x.double().sum() for x in norm_factor_sums(weights, mask, per_token=LEVELS[level].per_token)])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    mean = float(sums[0] / sums[1]) if sums[1] > 0 else 0.0
    factor = mean if mean > 1e-8 and not math.isnan(mean) else 1.0
    return weights / factor, factor
