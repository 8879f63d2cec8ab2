"""verl's metrics under verl's keys, with verl's values, from the moments that `measure` gathers.

In what they are not ours: statistics of k1 are −log r; extremes of sequence weights are from before the bounds; rows
without tokens count in means over sequences, with perplexity 1 and weight 0; 1e-8 stands beside the mean weight in the
effective sample size. Without a weight above 0 that divides by 0, as verl's does.
"""

from collections.abc import Mapping
from dataclasses import replace

from rlcorr.config import CorrectionConfig
from rlcorr.measuring.statistics import Numbers, largest, mean, sample_std, smallest, std
from rlcorr.rules import RejectionRule

Columns = Mapping[str, Numbers]
ROWS = {
    "training_ppl": ("seq_training_ppl", 1.0),
    "training_log_ppl": ("seq_training_log_ppl", 0.0),
    "rollout_ppl": ("seq_rollout_ppl", 1.0),
    "rollout_log_ppl": ("seq_rollout_log_ppl", 0.0),
    "log_ppl_diff": ("seq_log_ppl_diff", 0.0),
    "log_ppl_abs_diff": ("seq_log_ppl_abs_diff", 0.0),
    "ppl_ratio": ("seq_ppl_ratio", 1.0),
}
"""Means over rows: verl's key → our quantity, and what a row without tokens adds."""


def with_empty(moments: Numbers, rows: int, value: float) -> Numbers:
    """The moments of these and of `rows` more of this value.

    >>> with_empty(Numbers.of(2, 4), 1, 0.0)
    Numbers(count=3, total=6.0, squares=20.0, low=0.0, high=4)
    """
    if not rows:
        return moments
    return Numbers(
        moments.count + rows,
        moments.total + rows * value,
        moments.squares + rows * value * value,
        min(moments.low, value),
        max(moments.high, value),
    )


def offpolicy(of: Columns, empty: int, k3_kl: float | None) -> dict[str, float]:
    """How far the policies are apart. `k3_kl` replaces that of clamped log-ratios; verl does not clamp them."""
    chi2_rows = with_empty(of["seq_excess"], empty, 0.0)
    difference = with_empty(of["seq_log_ppl_diff"], empty, 0.0)
    return {
        **{key: mean(with_empty(of[name], empty, value)) for key, (name, value) in ROWS.items()},
        "kl": -mean(of["d"]),
        "k3_kl": mean(of["k3"]) if k3_kl is None else k3_kl,
        "log_ppl_diff_max": largest(difference),
        "log_ppl_diff_min": smallest(difference),
        "chi2_token": 2 * mean(of["ratio_excess"]) + of["ratio_excess"].squares / max(of["ratio_excess"].count, 1),
        "chi2_seq": 2 * mean(chi2_rows) + chi2_rows.squares / chi2_rows.count,
    }


def of_weights(of: Columns, config: CorrectionConfig, empty: int) -> dict[str, float]:
    """Of the weights, as they are before batch normalisation."""
    upper, lower = config.rollout_is_threshold, config.rollout_is_threshold_lower
    lowest = 1 / upper if lower is None else lower
    rows, weight, bounded = with_empty(of["seq_weight"], empty, 0.0), of["weight"], of["bounded"]
    sequence = config.rollout_is == "sequence"
    high, low = of["weight_high"], of["weight_low"]
    if sequence:  # a row without tokens has a product of 1, and a mean weight of 0
        high, low = with_empty(high, empty, float(upper < 1)), with_empty(low, empty, float(lowest > 1))
    extremes = with_empty(of["raw_weight"], empty, 1.0) if sequence else weight
    report = {
        "rollout_is_mean": mean(weight),
        "rollout_is_max": largest(extremes),
        "rollout_is_min": smallest(extremes),
        "rollout_is_ratio_fraction_high": mean(high),
        "rollout_is_ratio_fraction_low": mean(low),
        "rollout_is_std": std(of["bounded_excess"]) if weight.count > 1 else 0.0,
        "rollout_is_eff_sample_size": 1.0 / (bounded.squares / bounded.count / (mean(bounded) + 1e-8) ** 2),
        "rollout_is_seq_mean": mean(rows),
        "rollout_is_seq_std": sample_std(rows),
        "rollout_is_seq_max": largest(rows),
        "rollout_is_seq_min": smallest(rows),
        "rollout_is_seq_max_deviation": largest(with_empty(of["seq_weight_deviation"], empty, 1.0)),
        "rollout_is_seq_fraction_high": mean(with_empty(of["seq_raw_high"], empty, 0.0)),
        "rollout_is_seq_fraction_low": mean(with_empty(of["seq_raw_low"], empty, 1.0)),
    }
    return report if lower is None else report | {"rollout_is_oob_ratio": mean(of["outside"])}


def of_rule(of: Columns, rule: RejectionRule, option: str) -> dict[str, float]:
    """Of one rule; rows without tokens count nowhere."""
    k1, sides = rule.divergence == "k1", dict(of)
    if k1:  # its statistic is −log r
        sides |= {name: _mirrored(of[name]) for name in ("statistic", "clamped", "seq")}
        sides |= {f"{seq}{a}": of[f"{seq}{b}"] for seq in ("", "seq_") for a, b in (("low", "high"), ("high", "low"))}
    report = statistics(sides, option, sequence=rule.level == "sequence", two_sided=k1)
    report[f"rollout_rs_{option}_masked_fraction"] = mean(of["rejected"])
    report[f"rollout_rs_{option}_seq_masked_fraction"] = mean(of["seq_rejected"])
    return report


def statistics(of: Columns, option: str, *, sequence: bool, two_sided: bool) -> dict[str, float]:
    """Of a statistic as verl has it; without a lower bound nothing is below it."""
    extremes = of["seq" if sequence and of["seq"].count else "statistic"]
    report = {
        "mean": mean(of["statistic"]),
        "max": largest(extremes),
        "min": smallest(extremes),
        "fraction_high": mean(of["high"]),
        "fraction_low": mean(of["low"]) if two_sided else 0.0,
        "std": std(of["clamped"]) if of["statistic"].count > 1 else 0.0,
        "seq_mean": mean(of["seq"]),
        "seq_std": sample_std(of["seq"]),
        "seq_max": largest(of["seq"]),
        "seq_min": smallest(of["seq"]),
        "seq_max_deviation": largest(of["seq_deviation"]),
        "seq_fraction_high": mean(of["seq_high"]),
    }
    if two_sided:
        report["seq_fraction_low"] = mean(of["seq_low"])
    return {f"rollout_rs_{option}_{key}": value for key, value in report.items()}


def _mirrored(moments: Numbers) -> Numbers:
    return replace(moments, total=-moments.total, low=-moments.high, high=-moments.low)


def of_rejection(of: Columns, empty: int) -> dict[str, float]:
    """Of all rules together; the share of sequences is over all rows."""
    return {
        "rollout_rs_masked_fraction": mean(of["rejected"]),
        "rollout_rs_seq_masked_fraction": mean(with_empty(of["seq_rejected"], empty, 0.0)),
    }
