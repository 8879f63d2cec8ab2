"""Metrics of a correction. `measure` gathers moments on the device; `metrics` turns merged moments into numbers.

Keys are verl's, under `rollout_corr/`. Per-sequence means count only sequences that have tokens.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from rlcorr.correction import inside, log_weights, rule_statistic
from rlcorr.errors import UsageError, unknown
from rlcorr.masked import moments
from rlcorr.ratios import k3, over_sequence, ratio
from rlcorr.types import RULE_NAMES, CorrectionConfig, CorrectionResult, Moments, TokenBatch

PREFIX = "rollout_corr/"


def mean(m: Moments) -> float:
    return float(m.total / m.count) if m.count else 0.0


def std(m: Moments) -> float:
    """Population standard deviation."""
    return math.sqrt(max(float(m.squares / m.count) - mean(m) ** 2, 0.0)) if m.count else 0.0


def largest(m: Moments) -> float:
    return float(m.high) if m.count else 0.0


def smallest(m: Moments) -> float:
    return float(m.low) if m.count else 0.0


def effective_sample_size(m: Moments) -> float:
    """(Σw)² / (n Σw²) ∈ [0, 1]; 0 where every weight is 0 (Kish, 1965)."""
    return float(m.total**2 / (m.count * m.squares)) if m.squares else 0.0


@dataclass(frozen=True)
class Metric:
    """One number of the report: which moments it reads, how, and what it means."""

    of: str
    read: Callable[[Moments], float]
    formula: str
    meaning: str


METRICS: dict[str, Metric] = {
    "tokens": Metric("tokens", lambda m: float(m.count), "Σ mask", "response tokens measured"),
    "kept_fraction": Metric("kept", mean, "Σ keep / Σ mask", "share of the response tokens that no rule rejected"),
    "kl": Metric("k1", mean, "mean(−d)", "estimate of KL(π_rollout‖π_old); may be negative"),
    "k3_kl": Metric("k3", mean, "mean(eᵈ − 1 − d)", "the same divergence with less noise, never negative"),
    "abs_log_ratio": Metric("abs", mean, "mean |d|", "how far the two log-probs are apart on a typical token"),
    "abs_log_ratio_max": Metric("abs", largest, "max |d|", "the worst token"),
    "ratio_eff_sample_size": Metric(
        "ratio", effective_sample_size, "(Σr)²/(n Σr²)", "share of the tokens left if every ratio were used unbounded"
    ),
    "chi2_token": Metric(
        "ratio",
        lambda m: _square_mean(m) - 1,
        "mean(r²) − 1",
        "χ² divergence of the token ratios; an estimate below 0 is noise",
    ),
    "chi2_seq": Metric(
        "seq_ratio",
        lambda m: _square_mean(m) - 1,
        "mean((Π r)²) − 1",
        "χ² divergence of the sequence ratios; an estimate below 0 is noise",
    ),
    "training_log_ppl": Metric(
        "training_log_ppl", mean, "mean over rows of −mean log π_old", "log-perplexity, trainer"
    ),
    "rollout_log_ppl": Metric(
        "rollout_log_ppl", mean, "mean over rows of −mean log π_rollout", "log-perplexity, engine"
    ),
    "training_ppl": Metric("training_ppl", mean, "mean over rows of exp(−mean log π_old)", "perplexity, trainer"),
    "rollout_ppl": Metric("rollout_ppl", mean, "mean over rows of exp(−mean log π_rollout)", "perplexity, engine"),
    "log_ppl_diff": Metric("log_ppl_diff", mean, "mean over rows of −mean d", "log-perplexity, trainer minus engine"),
    "log_ppl_abs_diff": Metric("log_ppl_abs_diff", mean, "mean over rows of |mean d|", "its size"),
    "log_ppl_diff_max": Metric("log_ppl_diff", largest, "max over rows of −mean d", "the row the trainer likes least"),
    "log_ppl_diff_min": Metric("log_ppl_diff", smallest, "min over rows of −mean d", "the row the trainer likes most"),
    "ppl_ratio": Metric("ppl_ratio", mean, "mean over rows of exp(−mean d)", "perplexity, trainer over engine"),
    "rollout_is_mean": Metric("weight", mean, "mean w", "average weight; far from 1 means bias or a wrong scale"),
    "rollout_is_std": Metric("weight", std, "std w", "spread of the weights"),
    "rollout_is_max": Metric("weight", largest, "max w", "largest weight, after the bounds"),
    "rollout_is_min": Metric("weight", smallest, "min w", "smallest weight, after the bounds"),
    "rollout_is_eff_sample_size": Metric(
        "weight", effective_sample_size, "(Σw)²/(n Σw²)", "share of the tokens that still carry information"
    ),
    "rollout_is_ratio_fraction_high": Metric("weight_high", mean, "share of raw w > upper", "mass cut off above"),
    "rollout_is_ratio_fraction_low": Metric(
        "weight_low", mean, "share of raw w < lower (1/upper if there is none)", "mass far below 1"
    ),
    "rollout_rs_masked_fraction": Metric("rejected", mean, "1 − Σ keep / Σ mask", "share of the tokens rejected"),
    "rollout_rs_seq_masked_fraction": Metric(
        "seq_rejected", mean, "rows with a rejected token / rows", "share of the sequences that lost a token"
    ),
}


def measure(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> dict[str, Moments]:
    """Every moment that the metrics read. Nothing is moved off the device. Needs old_log_probs."""
    if batch.old_log_probs is None:
        raise UsageError("the metrics need old_log_probs; the batch has only rollout_log_probs.")
    mask = batch.response_mask
    measured = _offpolicy(batch.old_log_probs, batch.rollout_log_probs, result.log_ratio, mask)
    measured |= {
        "tokens": moments(mask, mask),
        "kept": moments(result.keep_mask, mask),
        "rejected": moments(mask & ~result.keep_mask, mask),
        "seq_rejected": moments((mask & ~result.keep_mask).any(-1), mask.any(-1)),
        "weight": moments(result.weights, mask),
    }
    return measured | _weights(result, mask, config) | _rules(batch, result, config)


def _offpolicy(old: Tensor, rollout: Tensor, d: Tensor, mask: Tensor) -> dict[str, Moments]:
    rows = mask.any(-1)
    old, rollout = old.to(d.dtype), rollout.to(d.dtype)  # sums in bf16 would lose digits that d still has
    training_log_ppl, rollout_log_ppl = -over_sequence(old, mask, "mean"), -over_sequence(rollout, mask, "mean")
    difference = -over_sequence(d, mask, "mean")
    return {
        "k1": moments(-d, mask),
        "k3": moments(k3(d), mask),
        "abs": moments(d.abs(), mask),
        "ratio": moments(ratio(d), mask),
        "seq_ratio": moments(ratio(over_sequence(d, mask, "sum")), rows),
        "training_log_ppl": moments(training_log_ppl, rows),
        "rollout_log_ppl": moments(rollout_log_ppl, rows),
        "training_ppl": moments(training_log_ppl.exp(), rows),
        "rollout_ppl": moments(rollout_log_ppl.exp(), rows),
        "log_ppl_diff": moments(difference, rows),
        "log_ppl_abs_diff": moments(difference.abs(), rows),
        "ppl_ratio": moments(difference.exp(), rows),
    }


def _weights(result: CorrectionResult, mask: Tensor, config: CorrectionConfig) -> dict[str, Moments]:
    if config.rollout_is is None:
        return {}
    log_w = log_weights(result.log_ratio, mask, config.rollout_is)
    high = log_w > math.log(config.rollout_is_threshold)
    # An infinite upper bound has no reciprocal to take the logarithm of, so its logarithm is negated instead.
    lower = config.rollout_is_threshold_lower
    low = log_w < (-math.log(config.rollout_is_threshold) if lower is None else math.log(lower))
    return {"weight_high": moments(high, mask), "weight_low": moments(low, mask)}


def _rules(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> dict[str, Moments]:
    """Per rule, what it alone would reject, over tokens."""
    mask = batch.response_mask
    measured = {}
    for rule in config.rollout_rs:
        outside = ~inside(rule, rule_statistic(rule, batch, result.log_ratio))
        measured[f"rule:{rule.name}"] = moments(outside.expand_as(mask), mask)
    return measured


def merge(parts: Iterable[dict[str, Moments]]) -> dict[str, Moments]:
    """The moments of the union of several micro-batches, exactly."""
    return reduce(lambda a, b: {key: a[key].merge(b[key]) for key in a}, parts)


def metrics(measured: dict[str, Moments]) -> dict[str, float]:
    """The report: every metric whose moments were measured. This is where the device is waited for."""
    on_cpu = {name: _to_cpu(m) for name, m in measured.items()}
    report = {PREFIX + key: metric.read(on_cpu[metric.of]) for key, metric in METRICS.items() if metric.of in on_cpu}
    for name, m in on_cpu.items():
        if name.startswith("rule:"):
            report[f"{PREFIX}rollout_rs_{name.removeprefix('rule:')}_masked_fraction"] = mean(m)
    return report


def describe(key: str) -> str:
    """One sentence and the formula behind a metric key."""
    name = key.removeprefix(PREFIX)
    rule = name.removeprefix("rollout_rs_").removesuffix("_masked_fraction")
    if rule in RULE_NAMES:
        return f"share of the tokens that {rule} alone rejects (Σ outside / Σ mask)"
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return f"{METRICS[name].meaning} ({METRICS[name].formula})"


def _square_mean(m: Moments) -> float:
    return float(m.squares / m.count) if m.count else 1.0


def _to_cpu(m: Moments) -> Moments:
    return Moments(*torch.stack([m.count, m.total, m.squares, m.low, m.high]).cpu().unbind())
