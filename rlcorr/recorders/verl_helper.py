"""A replacement for verl's `trainer/ppo/rollout_corr_helper.py` (0.9.1), computed by our `correct` and `measure`.

Signatures, exceptions, keys, signs, extremes and the order of normalisation are verl's, as `make peers` checks. Three
things differ: weights on padding are 0, even if log-probs there are NaN; bfloat16 is converted to float32; bounds that
are NaN or have two "_", and an infinite bound of k2 or k3, raise ValueError. Names that are not here come from verl's
own helper: apply_bypass_mode, the metrics without a correction, and what its functions call each other for.

verl's metrics differ from ours in four points. Statistics of k1 are −log r. Extremes of sequence weights are of the
weights before the bounds. Rows without tokens count in means over sequences, with perplexity 1 and weight 0. The
effective sample size adds 1e-8 to the mean weight.
"""

import functools
import importlib
import math
import sys
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct, norm_factor_sums
from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.measuring.measure import measure
from rlcorr.measuring.metric_definitions import HostMoments, chi2, largest, mean, sample_std, smallest, std
from rlcorr.measuring.moments import RuleKey
from rlcorr.ratios import SAFETY_BOUND
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl.thresholds import of_weights, parse_bounds, parse_rules
from rlcorr.types import CorrectionResult, TokenBatch

HELPER = "verl.trainer.ppo.rollout_corr_helper"
"""The module that this one replaces."""
PREFIX = "rollout_corr/"
NO_TOKEN = "response_mask must contain at least one valid token (1)."
ROWS = {
    "training_ppl": 1.0, "training_log_ppl": 0.0, "rollout_ppl": 1.0, "rollout_log_ppl": 0.0, "log_ppl_diff": 0.0,
    "log_ppl_abs_diff": 0.0, "ppl_ratio": 1.0,
}  # fmt: skip
"""Means over rows: verl's key, which is our quantity without seq_ → the value of a row without tokens."""
Metrics = dict[str, float]
MomentsByKey = dict[str | RuleKey, HostMoments]


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Any, Tensor, Metrics]:
    """Return the weights, the mask without the rejected tokens, and the metrics with prefix.

    The weights are a DataProto with rollout_is_weights (B, T), or None. Raises ValueError for wrong shapes, names and
    numbers and for a mask without a token, TypeError for a threshold that is neither a number nor text.
    """
    if not response_mask.any():
        raise ValueError(NO_TOKEN)
    for other in (rollout_log_prob, response_mask):
        if old_log_prob.shape != other.shape:
            raise ValueError(f"old_log_prob has shape {tuple(old_log_prob.shape)}, another {tuple(other.shape)}.")
    config = _config(rollout_is, rollout_is_threshold, rollout_rs, rollout_rs_threshold)
    measured = _Measured.of(old_log_prob, rollout_log_prob, response_mask, config)
    weights, metrics = None, {}
    if config.rollout_is is not None:
        weights, metrics = measured.weights_and_metrics(rollout_is_batch_normalize, old_log_prob.dtype)
        weights = importlib.import_module("verl.protocol").DataProto.from_dict(tensors={"rollout_is_weights": weights})
    metrics |= measured.rejection_metrics() if config.rollout_rs else {}
    metrics |= measured.offpolicy_metrics()
    return weights, measured.kept, {PREFIX + key: x for key, x in metrics.items()}


def compute_rollout_correction_and_add_to_batch(batch: Any, rollout_corr_config: Any) -> tuple[Any, Metrics]:
    """Return verl's DataProto with a new response_mask and, if configured, rollout_is_weights; and the metrics."""
    defaults = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": False,
                "rollout_rs": None, "rollout_rs_threshold": None}  # fmt: skip
    options = {name: rollout_corr_config.get(name, default) for name, default in defaults.items()}
    tensors = batch.batch
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        tensors["old_log_probs"], tensors["rollout_log_probs"], tensors["response_mask"], **options
    )
    tensors["response_mask"] = mask
    return (batch if weights is None else batch.union(weights)), metrics


# --- options, with verl's exceptions ---


def _config(level: Any, threshold: Any, rollout_rs: Any, rules_threshold: Any) -> CorrectionConfig:
    """Return our configuration of verl's options; no weights if their level or threshold is None."""
    weights, rules = {}, ()
    try:
        if level is not None and threshold is not None:
            if level not in ("token", "sequence"):
                raise ValueError(f"Invalid rollout_is: {level}. Must be 'token' or 'sequence'.")
            if isinstance(threshold, bool) or not isinstance(threshold, int | float | str):
                raise TypeError(f"rollout_is_threshold must be a number or text, not a boolean; got {threshold!r}.")
            weights = {"rollout_is": level, **of_weights(parse_bounds("rollout_is_threshold", threshold))}
        if rollout_rs is not None:
            if not isinstance(rules_threshold, int | float | str | None):
                raise TypeError(f"rollout_rs_threshold must be a number or text; got {rules_threshold!r}.")
            rules = parse_rules(rollout_rs, rules_threshold)
        if any(rule.name == "token_binary_kl" for rule in rules):
            raise ValueError("Invalid rollout_rs option: binary_kl, which no release of verl has.")
        return CorrectionConfig(**weights, rollout_rs=rules)
    except UsageError as error:
        raise ValueError(str(error)) from error


# --- one batch, corrected and measured ---


def _host_moments(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> MomentsByKey:
    """Return the moments of a batch. Waits for the device."""
    return {name: HostMoments(*row) for name, row in measure(batch, result, config).rows()}


@dataclass(frozen=True)
class _Measured:
    """The weights and rejections of a batch, and its moments."""

    config: CorrectionConfig
    mask: Tensor  # (B, T) bool
    weights: Tensor  # (B, T), 0 on padding
    kept: Tensor  # (B, T) the mask without the rejected tokens, in the dtype of verl's mask
    moments: MomentsByKey
    k3_kl: float  # without a clamp: verl clamps no log-ratio here

    @classmethod
    def of(cls, old: Tensor, rollout: Tensor, mask: Tensor, config: CorrectionConfig) -> "_Measured":
        """Correct log-probs (B, T).

        As in verl, log-ratios are clamped to ±20 before a rule adds them, but not for the product of a sequence's
        weights.
        """
        dtype = torch.promote_types(old.dtype, rollout.dtype)
        batch = TokenBatch(mask.bool(), rollout.detach().to(dtype), old_log_probs=old.detach().to(dtype))
        result = correct(batch, config)
        moments = _host_moments(batch, result, config)
        keep, k3_kl = result.keep_mask, mean(moments["k3"])
        if not moments["abs_d"].high <= SAFETY_BOUND:  # `not <=` so that NaN counts as beyond
            d, rules = result.log_ratio, CorrectionConfig(rollout_rs=config.rollout_rs)
            k3_kl = float(masked_mean(d.exp() - d - 1, batch.response_mask))
            clamped = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)
            clamped_batch = TokenBatch(batch.response_mask, torch.zeros_like(clamped), old_log_probs=clamped)
            rejected = correct(clamped_batch, rules)
            keep, of_rules = rejected.keep_mask, _host_moments(clamped_batch, rejected, rules)
            moments |= {key: x for key, x in of_rules.items() if isinstance(key, RuleKey) or key.endswith("rejected")}
        return cls(config, batch.response_mask, result.weights, mask * keep, moments, k3_kl)

    def _of_rows(self, name: str, value: float) -> HostMoments:
        """Return the moments of a quantity of rows, in which each row without a token has this value."""
        m, rows = self.moments[name], len(self.mask) - int(self.moments["seq_excess"].count)
        if not rows:
            return m
        return HostMoments(
            m.count + rows, m.total + rows * value, m.squares + rows * value * value, min(m.low, value),
            max(m.high, value),
        )  # fmt: skip

    def weights_and_metrics(self, normalise: bool, dtype: torch.dtype) -> tuple[Tensor, Metrics]:
        """Return the weights in this dtype and their metrics without prefix.

        With `normalise` they are divided by their mean over all ranks: over all tokens, for sequence weights over all
        rows, including the rejected ones.
        """
        weights, metrics = self.weights.to(dtype), self._weight_metrics()
        if normalise:
            sums = norm_factor_sums(weights, self.mask, per_token=self.config.rollout_is == "token")
            sums = torch.stack([x.double().sum() for x in sums])
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(sums)
            average = float(sums[0] / sums[1]) if sums[1] > 0 else 0.0
            factor = average if average > 1e-8 and not math.isnan(average) else 1.0
            weights, metrics["rollout_is_batch_norm_factor"] = weights / factor, factor
        return weights, metrics

    def _weight_metrics(self) -> Metrics:
        upper, lower = self.config.rollout_is_threshold, self.config.rollout_is_threshold_lower
        lowest = 1 / upper if lower is None else lower
        moments, rows = self.moments, self._of_rows("seq_weight", 0.0)
        weight, extremes = moments["weight"], moments["extreme_weight"]
        high, low = moments["weight_high"], moments["weight_low"]
        if self.config.rollout_is == "sequence":  # a row without tokens has a product of 1, and a mean weight of 0
            high, low = self._of_rows("weight_high", upper < 1), self._of_rows("weight_low", lowest > 1)
            extremes = self._of_rows("extreme_weight", 1.0)
        metrics = {
            "mean": mean(weight),
            "max": largest(extremes),
            "min": smallest(extremes),
            "ratio_fraction_high": mean(high),
            "ratio_fraction_low": mean(low),
            "std": std(moments["weight_excess"]) if weight.count > 1 else 0.0,
            "eff_sample_size": 1.0 / (weight.squares / weight.count / (mean(weight) + 1e-8) ** 2),
            **_of_sequences(rows),
            "seq_max_deviation": largest(self._of_rows("seq_weight_deviation", 1.0)),
            "seq_fraction_high": mean(self._of_rows("seq_raw_high", 0.0)),
            "seq_fraction_low": mean(self._of_rows("seq_raw_low", 1.0)),
        } | ({} if lower is None else {"oob_ratio": mean(moments["outside"])})
        return {f"rollout_is_{key}": value for key, value in metrics.items()}

    def offpolicy_metrics(self) -> Metrics:
        """Return how far the policies are apart, without prefix."""
        rows, difference = self._of_rows("seq_excess", 0.0), self._of_rows("seq_log_ppl_diff", 0.0)
        return {
            **{key: mean(self._of_rows(f"seq_{key}", value)) for key, value in ROWS.items()},
            "kl": -mean(self.moments["d"]),
            "k3_kl": self.k3_kl,
            "log_ppl_diff_max": largest(difference),
            "log_ppl_diff_min": smallest(difference),
            "chi2_token": chi2(self.moments["ratio_excess"]),
            "chi2_seq": chi2(rows),
        }

    def rejection_metrics(self) -> Metrics:
        """Return the metrics of every rule, without rows that have no tokens, and of all rules, with them."""
        metrics = {key: value for rule in self.config.rollout_rs for key, value in self._rule_metrics(rule).items()}
        metrics["rollout_rs_masked_fraction"] = mean(self.moments["rejected"])
        metrics["rollout_rs_seq_masked_fraction"] = mean(self._of_rows("seq_rejected", 0.0))
        return metrics

    def _rule_metrics(self, rule: RejectionRule) -> Metrics:
        m = {key.quantity: x for key, x in self.moments.items() if isinstance(key, RuleKey) and key.rule == rule.name}
        is_k1 = rule.divergence == "k1"
        if is_k1:  # verl's statistic is −log r and ours log r: signs and sides swap
            m |= {name: replace(m[name], total=-m[name].total, low=-m[name].high, high=-m[name].low)
                  for name in ("statistic", "clamped", "seq")}  # fmt: skip
            m |= {"low": m["high"], "high": m["low"], "seq_low": m["seq_high"], "seq_high": m["seq_low"]}
        metrics = {
            "mean": mean(m["statistic"]),
            "max": largest(m["statistic"]),
            "min": smallest(m["statistic"]),
            "fraction_high": mean(m["high"]),
            "fraction_low": mean(m["low"]) if is_k1 else 0.0,  # without a lower bound nothing counts as below it
            "std": std(m["clamped"]) if m["statistic"].count > 1 else 0.0,
            **_of_sequences(m["seq"]),
            "seq_max_deviation": largest(m["seq_deviation"]),
            "seq_fraction_high": mean(m["seq_high"]),
            "masked_fraction": mean(m["rejected"]),
            "seq_masked_fraction": mean(m["seq_rejected"]),
        } | ({"seq_fraction_low": mean(m["seq_low"])} if is_k1 else {})
        return {f"rollout_rs_{rule.name}_{key}": value for key, value in metrics.items()}


def _of_sequences(m: HostMoments) -> Metrics:
    return {"seq_mean": mean(m), "seq_std": sample_std(m), "seq_max": largest(m), "seq_min": smallest(m)}


# --- what is left to verl's own helper ---


def __getattr__(name: str) -> Any:
    """Return a name of verl's own helper. Raises AttributeError if it has none of this name, or without verl."""
    if name.startswith("__"):  # asked for by Python and by tools, of every module
        raise AttributeError(name)
    present = sys.modules.get(HELPER)
    return getattr(_verls_own() if present in (None, sys.modules[__name__]) else present, name)


@functools.cache
def _verls_own() -> ModuleType:
    """Load verl's own helper without changing `sys.modules`, where this module has its name."""
    try:
        package = importlib.import_module(HELPER.rpartition(".")[0])
    except ImportError as error:
        raise AttributeError(f"verl's own helper is not installed: {error}") from error
    spec = PathFinder.find_spec(HELPER, package.__path__)
    if spec is None or spec.loader is None:
        raise AttributeError(f"{package.__name__} has no {HELPER}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
