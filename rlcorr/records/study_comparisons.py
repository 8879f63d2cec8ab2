"""Conclusions of a study: differences between its arms, seed by seed, and whether η predicted them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import end_rewards

ALPHA = 0.05
"""The probability that any of a family of comparisons is significant although no arm differs from another."""
NO_CORRECTION = ("none", "disabled")
"""Names of the arm without a correction; a study has at most one of them."""
RESAMPLES = 2000
"""Number of bootstrap samples."""


@dataclass(frozen=True)
class Comparison:
    """Reward at the end of one arm minus that of another, over the seeds that both have."""

    arm: str
    against: str
    seeds: int
    difference: Interval
    """Mean over the seeds, and its interval with the family's level."""


def comparisons(rows: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """Compare each arm with the other one on the same seeds.

    The interval is the mean difference ± t·s/√n, with Student's t at n − 1 degrees of freedom and a level of 0.05/m for
    m pairs (Bonferroni). So all m intervals together are right in 95 % of studies. With one seed it is infinite.
    """
    ends = end_rewards(rows)
    return [_comparison(ends, arm, against, ALPHA / len(pairs)) for arm, against in pairs]


def against_nothing(rows: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """Compare every arm with the one without a correction, if the rows have it."""
    arms = dict.fromkeys(row["preset"] for row in rows)
    return comparisons(rows, [(arm, none) for none in NO_CORRECTION if none in arms for arm in arms if arm != none])


def against_chance(rows: Sequence[Mapping[str, Any]], by_chance: Mapping[str, str]) -> list[Comparison]:
    """Compare every arm with the one that rejects as many tokens at random, if the rows have both."""
    arms = {row["preset"] for row in rows}
    return comparisons(rows, [(arm, other) for arm, other in by_chance.items() if {arm, other} <= arms])


def _comparison(ends: Mapping[str, Mapping[int, float]], arm: str, against: str, alpha: float) -> Comparison:
    seeds = sorted(ends[arm].keys() & ends[against].keys())
    differences = np.array([ends[arm][seed] - ends[against][seed] for seed in seeds])
    mean, half = float(differences.mean()), math.inf
    if len(seeds) > 1:
        half = float(stats.t.ppf(1 - alpha / 2, len(seeds) - 1) * differences.std(ddof=1) / math.sqrt(len(seeds)))
    return Comparison(arm, against, len(seeds), Interval(mean, mean - half, mean + half))


def progress_correlation(progress: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> Interval:
    """Compute Spearman's rank correlation between η of the arms and their reward at the end, the mean over the seeds.

    The interval has 95 % of the bootstrap samples, which draw arms and seeds with replacement.
    """
    ends = end_rewards(rows)
    arms = [arm for arm in progress if arm in ends]
    eta = np.array([progress[arm] for arm in arms])
    seeds = sorted(set.intersection(*(set(ends[arm]) for arm in arms)))
    reward = np.array([[ends[arm][seed] for seed in seeds] for arm in arms])  # (arms, seeds)
    rng, correlations = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        sampled_arms, sampled_seeds = (rng.integers(n, size=n) for n in (len(arms), len(seeds)))
        sampled_reward, sampled_eta = reward[sampled_arms][:, sampled_seeds].mean(1), eta[sampled_arms]
        if len(set(sampled_eta)) > 1 and len(set(sampled_reward)) > 1:  # if all are equal there is no order
            correlations.append(rank_correlation(sampled_eta, sampled_reward))
    low, high = np.quantile(correlations, [0.025, 0.975])
    return Interval(rank_correlation(eta, reward.mean(1)), float(low), float(high))


def rank_correlation(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Compute Spearman's rank correlation; equal values share their mean rank. NaN if all are equal."""
    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1])
