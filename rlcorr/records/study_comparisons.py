"""Conclusions of a study: differences between its arms, seed by seed, and whether η predicted them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import CONTROL, Endpoint, end_rewards, endpoints, last_accuracies, late_rewards

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
    p_value: float
    """Two-sided, of Student's t-test against a difference of 0; not adjusted for other comparisons."""


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


def compare_endpoints(rows: Sequence[Mapping[str, Any]], endpoint: Endpoint) -> list[Comparison]:
    """Compare the planned endpoint of every pair of arms on the same seeds: planned pairs first, then the others.

    The intervals are not adjusted: each is right in 95 % of studies. An unfinished study may lack an arm, whose pairs
    are left out.
    """
    by_arm = endpoints(rows, endpoint)
    others = [(arm, other) for number, arm in enumerate(by_arm) for other in list(by_arm)[:number]]
    planned = {frozenset(pair) for pair in endpoint.primary}
    main = [pair for pair in endpoint.primary if set(pair) <= by_arm.keys()]
    pairs = [*main, *(pair for pair in others if frozenset(pair) not in planned)]
    return [_comparison(by_arm, arm, against, ALPHA) for arm, against in pairs]


def endpoint_means(rows: Sequence[Mapping[str, Any]], endpoint: Endpoint) -> dict[str, Interval]:
    """Return arm → mean of the planned endpoint over the seeds, with its 95 % interval (Student's t)."""
    return {arm: _mean(list(of_seeds.values()), ALPHA)[0] for arm, of_seeds in endpoints(rows, endpoint).items()}


def against_control(rows: Sequence[Mapping[str, Any]], steps: int, *, earlier: int) -> list[Comparison]:
    """Compare the reward of the last steps with that of the control `earlier` steps before, on the same seeds.

    Answers of old weights show what those weights had learned. With `earlier` = their age, nothing but damage is left.
    """
    ends = late_rewards(rows, steps)
    control = late_rewards(rows, steps, earlier=earlier)[CONTROL]
    return [_comparison({**ends, CONTROL: control}, arm, CONTROL, ALPHA) for arm in ends if arm != CONTROL]


def pooled_accuracies(tables: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, float], list[Comparison]]:
    """Pool the last accuracies of the arms that all tables have.

    Returns arm → mean over the seeds, and the comparison of each arm with the one without a correction. A seed that
    several tables have counts once, with the mean of its training runs: on a GPU its seed does not repeat a run,
    but its start and its prompts are.
    """
    by_table = [last_accuracies(rows) for rows in tables]
    ends: dict[str, dict[int, float]] = {}
    for arm in (arm for arm in by_table[0] if all(arm in table for table in by_table)):
        seeds = dict.fromkeys(seed for table in by_table for seed in table[arm])
        ends[arm] = {seed: fmean(table[arm][seed] for table in by_table if seed in table[arm]) for seed in seeds}
    nothing = next(arm for arm in NO_CORRECTION if arm in ends)
    means = {arm: fmean(seeds.values()) for arm, seeds in ends.items()}
    return means, [_comparison(ends, arm, nothing, ALPHA) for arm in ends if arm != nothing]


def holm(p_values: Sequence[float]) -> list[float]:
    """Compute Holm's adjusted p-values: multiply the k-th smallest of m by m − k + 1, and keep their order.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _comparison(ends: Mapping[str, Mapping[int, float]], arm: str, against: str, alpha: float) -> Comparison:
    seeds = sorted(ends[arm].keys() & ends[against].keys())
    difference, p_value = _mean([ends[arm][seed] - ends[against][seed] for seed in seeds], alpha)
    return Comparison(arm, against, len(seeds), difference, p_value)


def _mean(of_seeds: Sequence[float], alpha: float) -> tuple[Interval, float]:
    """Return the mean over the seeds with its interval, which is infinite for one seed, and its p-value against 0."""
    from scipy import stats  # takes half a second to import, and the command line imports this module

    numbers, freedom = np.array(of_seeds), len(of_seeds) - 1
    mean, half, p_value = float(numbers.mean()), math.inf, 1.0
    if freedom:
        error = numbers.std(ddof=1) / math.sqrt(len(numbers))
        half = float(stats.t.ppf(1 - alpha / 2, freedom) * error)
        p_value = float(2 * stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Interval(mean, mean - half, mean + half), p_value


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
    from scipy import stats

    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1])
