"""What a study decides: differences between its arms, seed by seed, and whether η foretold them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import end_rewards

ALPHA = 0.05
"""The chance that any of a family of comparisons is wrong, where no arm differs from another."""
NO_CORRECTION = ("none", "disabled")
"""What the arm without a correction is called; a study has at most one of them."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Comparison:
    """Reward at the end of one arm less that of another, over the seeds that both have."""

    arm: str
    against: str
    seeds: int
    difference: Interval
    """Mean over the seeds, and its interval with the family's level."""


def comparisons(rows: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """Each arm beside the other on the same seeds: mean difference ± t·s/√n, with Student's t at n − 1 degrees of
    freedom and a level of 0.05/m for m pairs (Bonferroni), so that all m intervals hold together in 95 % of studies.
    The interval is infinite with one seed."""
    ends = end_rewards(rows)
    return [_comparison(ends, arm, against, ALPHA / len(pairs)) for arm, against in pairs]


def against_nothing(rows: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """Every arm beside the one without a correction, where the rows have it."""
    arms = dict.fromkeys(row["preset"] for row in rows)
    return comparisons(rows, [(arm, none) for none in NO_CORRECTION if none in arms for arm in arms if arm != none])


def against_chance(rows: Sequence[Mapping[str, Any]], by_chance: Mapping[str, str]) -> list[Comparison]:
    """Every arm beside the one that rejects as many tokens by chance, where the rows have both."""
    arms = {row["preset"] for row in rows}
    return comparisons(rows, [(arm, other) for arm, other in by_chance.items() if {arm, other} <= arms])


def _comparison(ends: Mapping[str, Mapping[int, float]], arm: str, against: str, alpha: float) -> Comparison:
    seeds = sorted(ends[arm].keys() & ends[against].keys())
    differences = np.array([ends[arm][seed] - ends[against][seed] for seed in seeds])
    mean, half = float(differences.mean()), math.inf
    if len(seeds) > 1:
        half = float(stats.t.ppf(1 - alpha / 2, len(seeds) - 1) * differences.std(ddof=1) / math.sqrt(len(seeds)))
    return Comparison(arm, against, len(seeds), Interval(mean, mean - half, mean + half))


def foretold(progress: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> Interval:
    """Spearman's rank correlation between η of the arms and their reward at the end, the mean over the seeds; with
    95 % of the bootstrap samples, which draw arms and seeds."""
    ends = end_rewards(rows)
    arms = [arm for arm in progress if arm in ends]
    eta = np.array([progress[arm] for arm in arms])
    seeds = sorted(set.intersection(*(set(ends[arm]) for arm in arms)))
    reward = np.array([[ends[arm][seed] for seed in seeds] for arm in arms])  # (arms, seeds)
    chance, correlations = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        drawn, of_seeds = chance.integers(len(arms), size=len(arms)), chance.integers(len(seeds), size=len(seeds))
        sample, sampled_eta = reward[drawn][:, of_seeds].mean(1), eta[drawn]
        if len(set(sampled_eta)) > 1 and len(set(sample)) > 1:  # else there is no order
            correlations.append(rank_correlation(sampled_eta, sample))
    low, high = np.quantile(correlations, [0.025, 0.975])
    return Interval(rank_correlation(eta, reward.mean(1)), float(low), float(high))


def rank_correlation(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Spearman's; equal values share their mean rank. NaN where all are equal."""
    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1])
