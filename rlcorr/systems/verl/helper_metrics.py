"""verl's metrics under verl's keys, with verl's values, from the moments that `measure` gathers.

Differences from our metrics:

- Statistics of k1 are −log r.
- Extremes of sequence weights are of the weights before the bounds.
- Rows without tokens count in means over sequences, with perplexity 1 and weight 0.
- The effective sample size adds 1e-8 to the mean weight. If no weight is above 0, it divides by 0, as verl's does.
"""

from collections.abc import Mapping
from dataclasses import replace

from rlcorr.config import CorrectionConfig
from rlcorr.measuring.statistics import HostMoments, largest, mean, sample_std, smallest, std
from rlcorr.rules import RejectionRule

MomentsByName = Mapping[str, HostMoments]
ROWS = {
    "training_ppl": ("seq_training_ppl", 1.0),
    "training_log_ppl": ("seq_training_log_ppl", 0.0),
    "rollout_ppl": ("seq_rollout_ppl", 1.0),
    "rollout_log_ppl": ("seq_rollout_log_ppl", 0.0),
    "log_ppl_diff": ("seq_log_ppl_diff", 0.0),
    "log_ppl_abs_diff": ("seq_log_ppl_abs_diff", 0.0),
    "ppl_ratio": ("seq_ppl_ratio", 1.0),
}
"""Means over rows. verl's key → our quantity, and its value in a row without tokens."""


def add_rows(moments: HostMoments, rows: int, value: float) -> HostMoments:
    """Return the moments with `rows` more rows that have this value.

    >>> add_rows(HostMoments.of(2, 4), 1, 0.0)
    HostMoments(count=3, total=6.0, squares=20.0, low=0.0, high=4)
    """
    if not rows:
        return moments
    return HostMoments(
        moments.count + rows,
        moments.total + rows * value,
        moments.squares + rows * value * value,
        min(moments.low, value),
        max(moments.high, value),
    )


def offpolicy_metrics(moments: MomentsByName, empty_rows: int, k3_kl: float | None) -> dict[str, float]:
    """Return how far the policies are apart. `k3_kl` replaces the k3 of clamped log-ratios: verl clamps none here."""
    excess = moments["ratio_excess"]  # r − 1 of each token
    chi2_rows = add_rows(moments["seq_excess"], empty_rows, 0.0)
    difference = add_rows(moments["seq_log_ppl_diff"], empty_rows, 0.0)
    return {
        **{key: mean(add_rows(moments[name], empty_rows, value)) for key, (name, value) in ROWS.items()},
        "kl": -mean(moments["d"]),
        "k3_kl": mean(moments["k3"]) if k3_kl is None else k3_kl,
        "log_ppl_diff_max": largest(difference),
        "log_ppl_diff_min": smallest(difference),
        "chi2_token": 2 * mean(excess) + excess.squares / max(excess.count, 1),
        "chi2_seq": 2 * mean(chi2_rows) + chi2_rows.squares / chi2_rows.count,
    }


def weight_metrics(moments: MomentsByName, config: CorrectionConfig, empty_rows: int) -> dict[str, float]:
    """Return the metrics of the weights before batch normalisation."""
    upper, lower = config.rollout_is_threshold, config.rollout_is_threshold_lower
    lowest = 1 / upper if lower is None else lower
    rows, weight, bounded = add_rows(moments["seq_weight"], empty_rows, 0.0), moments["weight"], moments["bounded"]
    sequence = config.rollout_is == "sequence"
    high, low = moments["weight_high"], moments["weight_low"]
    if sequence:  # a row without tokens has a product of 1, and a mean weight of 0
        high, low = add_rows(high, empty_rows, float(upper < 1)), add_rows(low, empty_rows, float(lowest > 1))
    extremes = add_rows(moments["raw_weight"], empty_rows, 1.0) if sequence else weight
    metrics = {
        "rollout_is_mean": mean(weight),
        "rollout_is_max": largest(extremes),
        "rollout_is_min": smallest(extremes),
        "rollout_is_ratio_fraction_high": mean(high),
        "rollout_is_ratio_fraction_low": mean(low),
        "rollout_is_std": std(moments["bounded_excess"]) if weight.count > 1 else 0.0,
        "rollout_is_eff_sample_size": 1.0 / (bounded.squares / bounded.count / (mean(bounded) + 1e-8) ** 2),
        "rollout_is_seq_mean": mean(rows),
        "rollout_is_seq_std": sample_std(rows),
        "rollout_is_seq_max": largest(rows),
        "rollout_is_seq_min": smallest(rows),
        "rollout_is_seq_max_deviation": largest(add_rows(moments["seq_weight_deviation"], empty_rows, 1.0)),
        "rollout_is_seq_fraction_high": mean(add_rows(moments["seq_raw_high"], empty_rows, 0.0)),
        "rollout_is_seq_fraction_low": mean(add_rows(moments["seq_raw_low"], empty_rows, 1.0)),
    }
    return metrics if lower is None else metrics | {"rollout_is_oob_ratio": mean(moments["outside"])}


def rule_metrics(moments: MomentsByName, rule: RejectionRule, option: str) -> dict[str, float]:
    """Return the metrics of one rule. Rows without tokens are not included."""
    k1, verl_moments = rule.divergence == "k1", dict(moments)
    if k1:  # verl's statistic is −log r and ours log r: signs and sides swap
        verl_moments |= {name: _negated(moments[name]) for name in ("statistic", "clamped", "seq")}
        for prefix in ("", "seq_"):
            verl_moments |= {f"{prefix}low": moments[f"{prefix}high"], f"{prefix}high": moments[f"{prefix}low"]}
    metrics = statistic_metrics(verl_moments, option, sequence=rule.level == "sequence", two_sided=k1)
    metrics[f"rollout_rs_{option}_masked_fraction"] = mean(moments["rejected"])
    metrics[f"rollout_rs_{option}_seq_masked_fraction"] = mean(moments["seq_rejected"])
    return metrics


def statistic_metrics(moments: MomentsByName, option: str, *, sequence: bool, two_sided: bool) -> dict[str, float]:
    """Return the metrics of one statistic with verl's sign. Without a lower bound no value counts as below it."""
    extremes = moments["seq" if sequence and moments["seq"].count else "statistic"]
    metrics = {
        "mean": mean(moments["statistic"]),
        "max": largest(extremes),
        "min": smallest(extremes),
        "fraction_high": mean(moments["high"]),
        "fraction_low": mean(moments["low"]) if two_sided else 0.0,
        "std": std(moments["clamped"]) if moments["statistic"].count > 1 else 0.0,
        "seq_mean": mean(moments["seq"]),
        "seq_std": sample_std(moments["seq"]),
        "seq_max": largest(moments["seq"]),
        "seq_min": smallest(moments["seq"]),
        "seq_max_deviation": largest(moments["seq_deviation"]),
        "seq_fraction_high": mean(moments["seq_high"]),
    }
    if two_sided:
        metrics["seq_fraction_low"] = mean(moments["seq_low"])
    return {f"rollout_rs_{option}_{key}": value for key, value in metrics.items()}


def _negated(moments: HostMoments) -> HostMoments:
    return replace(moments, total=-moments.total, low=-moments.high, high=-moments.low)


def rejection_metrics(moments: MomentsByName, empty_rows: int) -> dict[str, float]:
    """Return the metrics of all rules together. The share of sequences is over all rows."""
    return {
        "rollout_rs_masked_fraction": mean(moments["rejected"]),
        "rollout_rs_seq_masked_fraction": mean(add_rows(moments["seq_rejected"], empty_rows, 0.0)),
    }
