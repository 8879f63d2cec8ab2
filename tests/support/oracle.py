"""The same quantities once more, token by token with `math`: the numbers that the tests expect.

Written from the formulas in verl's specification and from the list of its faults, not from rlcorr. Rows are lists of
floats, a mask is rows of bools. Nothing here is fast and nothing uses tensor arithmetic.
"""

import math
import random
import statistics as statistics_of
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch

Rows = list[list[float]]
Masks = list[list[bool]]

CLAMP = 20.0


def examples(count: int) -> settings:
    """Settings for property tests: the same examples every time, nothing written to disk, no clock."""
    if settings.get_current_profile_name() == "quick":
        count = max(count // 5, 5)
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=quiet)


# --- inputs ---


@dataclass(frozen=True)
class Pairs:
    """What a test feeds in, as plain numbers."""

    old: Rows
    rollout: Rows
    mask: Masks
    columns: int
    dtype: str
    advantages: Rows | None = None


# Multiples of 1/16 up to 127/16 need seven bits, so they, and their differences in float32, are exact in every dtype.
GRID = [-k / 16 for k in range(128)]
FINITE = [*GRID, -30.0]
WILD = [*FINITE, math.inf, -math.inf, math.nan]
PADDING = [0.0, math.nan, math.inf, -math.inf]
DTYPES = ("float32", "float64", "bfloat16", "float16")
# The first is what most examples are: hypothesis prefers what stands first.
SHAPES = [(4, 6), (8, 3), (3, 9), (1, 7), (6, 1), (1, 1), (0, 4), (3, 0)]
STEPS = [0.0, 0.0, 0.0625, -0.0625, 0.25, -0.25, -0.5, 0.625, 1.0]


@st.composite
def pairs(draw: st.DrawFn, *, wild: bool = True) -> Pairs:
    """A batch of one of SHAPES, with any mask, any dtype, and NaN or ±inf on its padding.

    `wild` puts NaN and ±inf on real tokens too. hypothesis chooses the shape and the kind of batch; a seeded
    generator fills in the tokens, because drawing each by hypothesis gives mostly tiny, equal ones.
    """
    rows, columns = draw(st.sampled_from(SHAPES))
    some = random.Random(draw(st.integers(0, 2**32)))
    far, real = draw(st.sampled_from([0.05, 0.0, 0.3])), draw(st.sampled_from([0.8, 1.0, 0.5, 0.0]))
    extremes = WILD if wild else FINITE
    # A whole row is sometimes exact: otherwise hardly any sequence would pass a tight rule.
    exact = [some.random() < 0.3 for _ in range(rows)]
    mask = [[some.random() < real for _ in range(columns)] for _ in range(rows)]
    rollout = [[-30.0 if some.random() < far / 4 else some.choice(GRID) for _ in range(columns)] for _ in range(rows)]
    old = [[_old(some, rollout[b][t], far, exact[b], extremes) for t in range(columns)] for b in range(rows)]
    for grid in (old, rollout):
        for b in range(rows):
            grid[b] = [x if m else some.choice(PADDING) for x, m in zip(grid[b], mask[b], strict=True)]
    advantages = [[some.choice([-2.0, -0.5, 0.0, 1.0, 3.0]) for _ in range(columns)] for _ in range(rows)]
    return Pairs(old, rollout, mask, columns, draw(st.sampled_from(DTYPES)), advantages)


def _old(some: random.Random, rollout: float, far: float, exact: bool, extremes: list[float]) -> float:
    if rollout == -30.0:
        return 0.0  # d = +30, beyond the safety clamp
    if some.random() < far:
        return some.choice([some.choice(extremes), extremes[-1], extremes[-2]])
    return min(rollout + (0.0 if exact else some.choice(STEPS)), 0.0)


def to_batch(given: Pairs) -> TokenBatch:
    """Return the same batch for the code under test; not by `from_log_probs`, which refuses NaN and +inf."""
    shape, dtype = (len(given.mask), given.columns), getattr(torch, given.dtype)
    old, rollout, mask = (torch.tensor(x).reshape(shape) for x in (given.old, given.rollout, given.mask))
    batch = TokenBatch(response_mask=mask.bool(), rollout_log_probs=rollout.to(dtype), old_log_probs=old.to(dtype))
    return (
        batch if given.advantages is None else batch.replace(advantages=torch.tensor(given.advantages).reshape(shape))
    )


# --- arithmetic that Python's floats do not do by themselves ---


def clamp(x: float, low: float, high: float) -> float:
    """NaN stays NaN."""
    return x if math.isnan(x) else min(max(x, low), high)


def exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def ratio(x: float) -> float:
    return math.exp(clamp(x, -CLAMP, CLAMP))


def mean(xs: list[float]) -> float:
    """0 for nothing."""
    return sum(xs) / len(xs) if xs else 0.0


def largest(xs: list[float]) -> float:
    if any(math.isnan(x) for x in xs):
        return math.nan
    return max(xs, default=0.0)


def smallest(xs: list[float]) -> float:
    return -largest([-x for x in xs])


def std(xs: list[float]) -> float:
    """Population standard deviation in two passes."""
    centre = mean(xs)
    return math.sqrt(mean([(x - centre) ** 2 for x in xs]))


def ess(xs: list[float]) -> float:
    squares = sum(x * x for x in xs)
    return sum(xs) ** 2 / (len(xs) * squares) if squares else 0.0


def real(row: list[Any], mask: list[bool]) -> list[Any]:
    return [x for x, m in zip(row, mask, strict=True) if m]


# --- divergences ---


def k2(d: float) -> float:
    return d * d / 2


def k3(d: float) -> float:
    """e^d − 1 − d by its power series where the subtraction would lose digits."""
    if abs(d) < 1e-2:
        return d**2 / 2 + d**3 / 6 + d**4 / 24 + d**5 / 120
    return math.exp(d) - 1 - d


def binary_kl(log_p: float, log_q: float) -> float:
    """The larger of the two KLs between the coins "this token" and "another", probabilities clipped to 1e-6."""
    p, q = (clamp(exp(x), 1e-6, 1 - 1e-6) for x in (log_p, log_q))
    forward = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    backward = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    return math.nan if math.isnan(forward) else max(forward, backward)


def forward_kl(log_p: float, log_q: float) -> float:
    """KL(Q‖P) of the coins of binary_kl, at least 0."""
    p, q = (clamp(exp(x), 1e-6, 1 - 1e-6) for x in (log_p, log_q))
    value = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    return math.nan if math.isnan(value) else max(value, 0.0)


def signed_kl(log_p: float, log_q: float) -> float:
    """KL(Q‖P) of the same coins, with the sign of p − q."""
    p, q = (clamp(exp(x), 1e-8, 1 - 1e-8) for x in (log_p, log_q))
    if math.isnan(p) or math.isnan(q):
        return math.nan
    value = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    return value * ((p > q) - (p < q))


def divergence(name: str, old: float, rollout: float) -> float:
    """Per token. k1 is log r, because bounds on it are bounds on r."""
    d = old - rollout
    if name == "k1":
        return d
    if name == "prob_diff":
        return exp(old) - exp(rollout)
    if name in ("binary_kl", "signed_kl", "forward_kl"):
        return {"binary_kl": binary_kl, "signed_kl": signed_kl, "forward_kl": forward_kl}[name](old, rollout)
    if name == "binary_tv":
        return abs(exp(old) - exp(rollout))
    c = clamp(d, -CLAMP, CLAMP)
    if math.isnan(c):
        return c
    return {
        "k2": k2,
        "k3": k3,
        "abs_ratio_error": lambda x: abs(math.expm1(x)),
        "mult_error": lambda x: math.exp(abs(x)),
    }[name](c)


def divergences(name: str, old: list[float], rollout: list[float]) -> list[float]:
    """Of every token of an answer."""
    if name == "prefix_gap":
        return prefix_gaps(old, rollout)
    return [divergence(name, o, r) for o, r in zip(old, rollout, strict=True)]


def prefix_gaps(old: list[float], rollout: list[float]) -> list[float]:
    """Of each token of an answer the smallest δ with w_t D_t ≤ min(δ, δ + b Σ_{j<t} w_j − Σ_{j<t} w_j D_j), CPPO's
    condition: w from 1 to 0.8, b the 90 % quantile of D within 0.02 and 0.04."""
    gap = [abs(exp(o) - exp(r)) for o, r in zip(old, rollout, strict=True)]
    if any(map(math.isnan, gap)):
        return [math.nan] * len(gap)
    tenths = statistics_of.quantiles(gap, n=10, method="inclusive") if len(gap) > 1 else gap * 9
    b = clamp(tenths[8], 0.02, 0.04) if gap else 0.0
    smallest_deltas, spent, before = [], 0.0, 0.0
    for t, x in enumerate(gap):
        w = 1 - 0.2 * t / max(len(gap) - 1, 1)
        smallest_deltas.append(max(w * x, w * x + spent - b * before))
        spent, before = spent + w * x, before + w
    return smallest_deltas


def reduce(xs: list[float], how: str) -> float:
    return {"sum": sum, "mean": mean, "max": largest, "min": smallest}[how](xs)


# --- the correction ---


@dataclass(frozen=True)
class Expected:
    log_ratio: Rows
    weights: Rows
    keep: Masks
    rejected_by: list[list[int]]
    doubtful: bool
    """A statistic lies so near its bound that float32 may fall on the other side."""


def correct(given: Pairs, config: CorrectionConfig) -> Expected:
    d = [
        [o - r if m else 0.0 for o, r, m in zip(*row, strict=True)]
        for row in zip(given.old, given.rollout, given.mask, strict=True)
    ]
    rejected_by = [[0] * given.columns for _ in d]
    doubtful = False
    for number, rule in enumerate(config.rollout_rs, start=1):
        for b, row in enumerate(statistics(rule, given)):
            for t, statistic in enumerate(row):
                doubtful = doubtful or near_bound(rule, statistic)
                if given.mask[b][t] and rejected_by[b][t] == 0 and objects(rule, given, b, t, statistic):
                    rejected_by[b][t] = number
    keep = [[m and not by for m, by in zip(*row, strict=True)] for row in zip(given.mask, rejected_by, strict=True)]
    return Expected(d, weights(d, given.mask, keep, config), keep, rejected_by, doubtful)


def statistics(rule: RejectionRule, given: Pairs) -> Rows:
    """What the rule compares, per token; a sequence rule has one number for its whole row, over its real tokens."""
    rows = []
    for old, rollout, mask in zip(given.old, given.rollout, given.mask, strict=True):
        values = iter(divergences(rule.divergence, real(old, mask), real(rollout, mask)))
        row = [next(values) if m else 0.0 for m in mask]
        rows.append(row if rule.reduce is None else [reduce(real(row, mask), rule.reduce)] * len(row))
    return rows


def log_bounds(rule: RejectionRule) -> tuple[float, float]:
    low = -math.inf if rule.lower is None else rule.lower
    if rule.divergence != "k1":
        return low, rule.upper
    return (-math.inf if rule.lower is None else math.log(low)), math.log(rule.upper)


def passes(rule: RejectionRule, statistic: float) -> bool:
    """Bounds belong to the inside; NaN is outside."""
    low, high = log_bounds(rule)
    return low <= statistic <= high


def objects(rule: RejectionRule, given: Pairs, b: int, t: int, statistic: float) -> bool:
    """Outside the bounds, on a token that the rule is about. A NaN is always its business."""
    if rule.applies_to == "all":
        return not passes(rule, statistic)
    assert given.advantages is not None
    advantage, d = given.advantages[b][t], given.old[b][t] - given.rollout[b][t]
    concerned = advantage < 0 if rule.applies_to == "negative" else d * advantage > 0 or math.isnan(d * advantage)
    return concerned and not passes(rule, statistic)


def near_bound(rule: RejectionRule, statistic: float) -> bool:
    # 1 − p loses digits in float32 where p is near 1: 1 − (1 − 1e-6) is off by 1.3 %.
    margin = 2e-3 if rule.divergence in ("binary_kl", "signed_kl", "forward_kl") else 1e-4
    return any(abs(statistic - bound) < margin * max(1.0, abs(bound)) for bound in log_bounds(rule))


def log_weights(d: Rows, mask: Masks, level: str) -> Rows:
    if level == "token":
        return d
    if level == "prefix":
        return [prefix_sums(row, m) for row, m in zip(d, mask, strict=True)]
    how = {"sequence": "sum", "geometric": "mean"}[level]
    return [[reduce(real(row, m), how)] * len(row) for row, m in zip(d, mask, strict=True)]


def prefix_sums(row: list[float], mask: list[bool]) -> list[float]:
    """Σ_{j≤t} d_j over real tokens."""
    return [reduce(real(row[: t + 1], mask[: t + 1]), "sum") for t in range(len(row))]


def weights(d: Rows, mask: Masks, keep: Masks, config: CorrectionConfig) -> Rows:
    """Truncated or zeroed weights, 0 on padding; normalised over what is kept."""
    if config.rollout_is is None:
        return [[float(m) for m in row] for row in mask]
    raw = log_weights(d, mask, config.rollout_is)
    bounded = [
        [bound_weight(x, config) if m else 0.0 for x, m in zip(*row, strict=True)]
        for row in zip(raw, mask, strict=True)
    ]
    if not config.rollout_is_batch_normalize:
        return bounded
    centre = kept_mean(bounded, keep, config.rollout_is)
    return [[w / centre for w in row] for row in bounded] if centre > 1e-8 else bounded


def bound_weight(log_w: float, config: CorrectionConfig) -> float:
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    w = ratio(log_w)
    if config.rollout_is_mode == "truncate":
        return clamp(w, 0.0 if lower is None else lower, upper)
    inside = (-math.inf if lower is None else math.log(lower)) <= log_w <= math.log(upper)
    return w if inside else 0.0


def kept_mean(values: Rows, keep: Masks, level: str) -> float:
    """Over kept tokens, or one vote for each sequence that keeps a token."""
    kept = [real(row, k) for row, k in zip(values, keep, strict=True)]
    if level in ("token", "prefix"):
        return mean([w for row in kept for w in row])
    return mean([mean(row) for row in kept if row])


# --- metrics ---


def metrics(given: Pairs, config: CorrectionConfig) -> dict[str, float]:
    """Every number of the report, without its prefix. Rows without tokens count nowhere."""
    expected = correct(given, config)
    rows = [b for b, mask in enumerate(given.mask) if any(mask)]
    d = [real(expected.log_ratio[b], given.mask[b]) for b in rows]
    old, rollout = ([real(x[b], given.mask[b]) for b in rows] for x in (given.old, given.rollout))
    flat = [x for row in d for x in row]
    ratios, sizes = [ratio(x) for x in flat], [abs(x) for x in flat]
    rejected = [real([float(by > 0) for by in expected.rejected_by[b]], given.mask[b]) for b in rows]
    rejected_flat = [x for row in rejected for x in row]
    gaps = [-mean(row) for row in d]
    report = {
        "tokens": float(len(flat)),
        "sequences": float(len(rows)),
        "kept_fraction": 1 - mean(rejected_flat) if flat else 0.0,
        "kl": mean([-x for x in flat]),
        "k2_kl": mean([k2(x) for x in flat]),
        "k3_kl": mean([k3(clamp(x, -CLAMP, CLAMP)) for x in flat]),
        "log_ratio_mean": mean(flat),
        "log_ratio_std": std(flat),
        "abs_log_ratio": mean(sizes),
        "abs_log_ratio_std": std(sizes),
        "abs_log_ratio_max": largest(sizes),
        "abs_log_ratio_min": smallest(sizes),
        "is_ratio_mean": mean(ratios),
        "is_ratio_std": std(ratios),
        "is_ratio_max": largest(ratios),
        "is_ratio_min": smallest(ratios),
        "ratio_eff_sample_size": ess(ratios),
        "chi2_token": mean([r * r for r in ratios]) - 1 if flat else 0.0,
        "chi2_seq": mean([ratio(sum(row)) ** 2 for row in d]) - 1 if flat else 0.0,
        "training_log_ppl": mean([-mean(row) for row in old]),
        "rollout_log_ppl": mean([-mean(row) for row in rollout]),
        "training_ppl": mean([exp(-mean(row)) for row in old]),
        "rollout_ppl": mean([exp(-mean(row)) for row in rollout]),
        "log_ppl_diff": mean(gaps),
        "log_ppl_abs_diff": mean([abs(x) for x in gaps]),
        "log_ppl_diff_max": largest(gaps),
        "log_ppl_diff_min": smallest(gaps),
        "ppl_ratio": mean([exp(x) for x in gaps]),
        "rollout_rs_masked_fraction": mean(rejected_flat),
        "rollout_rs_seq_masked_fraction": mean([float(any(row)) for row in rejected]),
    }
    before = replace(config, rollout_is_batch_normalize=False)
    w = [real(row, given.mask[b]) for b, row in enumerate(correct(given, before).weights) if any(given.mask[b])]
    kept = [x for b in rows for x in real(expected.weights[b], expected.keep[b])]
    squares = sum(x * x for x in kept)
    report["trained_is_mean"] = mean(kept)
    report["trained_eff_sample_size"] = sum(kept) ** 2 / (len(flat) * squares) if squares else 0.0
    if config.rollout_is is not None:
        report |= _weight_metrics(w, d, config)
    if config.rollout_is is not None and config.rollout_is_batch_normalize:
        keep = [real(expected.keep[b], given.mask[b]) for b in rows]
        factor = kept_mean(w, keep, config.rollout_is)
        report["rollout_is_batch_norm_factor"] = factor if factor > 1e-8 else 1.0
    vetoes = [rule for rule in config.rollout_rs if rule.name in ("seq_min_k1", "seq_max_k1")]
    if vetoes:
        hit = [any(not passes(rule, reduce(row, rule.reduce or "")) for rule in vetoes) for row in d]
        report["rollout_rs_veto_seq_masked_fraction"] = mean([float(x) for x in hit])
    return report | _rule_metrics(given, config)


def _weight_metrics(weights: Rows, d: Rows, config: CorrectionConfig) -> dict[str, float]:
    """`weights` and `d` on real tokens, row by row."""
    w = [x for row in weights for x in row]
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    floor = -math.log(upper) if lower is None else math.log(lower)
    per_row = config.rollout_is not in ("token", "prefix")
    log_raw = (
        [[reduce(row, "sum" if config.rollout_is == "sequence" else "mean")] * len(row) for row in d]
        if per_row
        else [prefix_sums(row, [True] * len(row)) for row in d]
        if config.rollout_is == "prefix"
        else d
    )
    raw_flat = [x for row in log_raw for x in row]
    raw = [ratio(x) for x in raw_flat]
    decided = [row[0] for row in log_raw] if per_row else raw_flat
    seq_raw = [math.log(mean([ratio(x) for x in row])) for row in log_raw] if not per_row else decided
    seq = [mean(row) for row in weights]
    outside = [float(x > math.log(upper) or (lower is not None and x < floor)) for x in raw_flat]
    return {
        "rollout_is_mean": mean(w),
        "rollout_is_std": std(w),
        "rollout_is_max": largest(raw if per_row else w),
        "rollout_is_min": smallest(raw if per_row else w) if w else 0.0,
        "rollout_is_bounded_max": largest(w),
        "rollout_is_bounded_min": smallest(w) if w else 0.0,
        "rollout_is_eff_sample_size": ess(w),
        "rollout_is_raw_mean": mean(raw),
        "rollout_is_raw_std": std(raw),
        "rollout_is_raw_max": largest(raw),
        "rollout_is_raw_min": smallest(raw) if raw else 0.0,
        "rollout_is_raw_eff_sample_size": ess(raw),
        "rollout_is_ratio_fraction_high": mean([float(x > math.log(upper)) for x in decided]),
        "rollout_is_ratio_fraction_low": mean([float(x < floor) for x in decided]),
        "rollout_is_oob_ratio": mean(outside),
        "rollout_is_seq_mean": mean(seq),
        "rollout_is_seq_std": sample_std(seq),
        "rollout_is_seq_max": largest(seq),
        "rollout_is_seq_min": smallest(seq) if seq else 0.0,
        "rollout_is_seq_eff_sample_size": ess(seq),
        "rollout_is_seq_max_deviation": largest([abs(x - 1) for x in seq]),
        "rollout_is_seq_fraction_high": mean([float(x > math.log(upper)) for x in seq_raw]),
        "rollout_is_seq_fraction_low": mean([float(x < floor) for x in seq_raw]),
    }


def sample_std(xs: list[float]) -> float:
    return std(xs) * math.sqrt(len(xs) / (len(xs) - 1)) if len(xs) > 1 else 0.0


def _rule_metrics(given: Pairs, config: CorrectionConfig) -> dict[str, float]:
    """Of each rule as if it were alone; its statistic is in log r for k1."""
    report = {}
    for rule in config.rollout_rs:
        low, high = log_bounds(rule)
        rows = [b for b, mask in enumerate(given.mask) if any(mask)]
        every = statistics(rule, given)
        s = [real(every[b], given.mask[b]) for b in rows]
        lost = [
            [float(objects(rule, given, b, t, every[b][t])) for t, m in enumerate(given.mask[b]) if m] for b in rows
        ]
        flat, per_row = [x for row in s for x in row], [mean(row) for row in s]
        decided = flat if rule.level == "token" else [row[0] for row in s]
        numbers = {
            "mean": mean(flat),
            "max": largest(flat),
            "min": smallest(flat) if flat else 0.0,
            "std": std([clamp(x, low, high) for x in flat]),
            "fraction_high": mean([float(x > high) for x in decided]),
            "fraction_low": mean([float(x < low) for x in decided]),
            "seq_mean": mean(per_row),
            "seq_std": sample_std(per_row),
            "seq_max": largest(per_row),
            "seq_min": smallest(per_row) if per_row else 0.0,
            "seq_max_deviation": largest([abs(x) for x in per_row]),
            "seq_fraction_high": mean([float(x > high) for x in per_row]),
            "seq_fraction_low": mean([float(x < low) for x in per_row]),
            "masked_fraction": mean([x for row in lost for x in row]),
            "seq_masked_fraction": mean([float(any(row)) for row in lost]),
        }
        same = ("std", "seq_std", "seq_max_deviation", "masked_fraction", "seq_masked_fraction")
        turned = "log_ratio_" if rule.divergence == "k1" else ""
        named = {key if key in same else turned + key: value for key, value in numbers.items()}
        report |= {f"rollout_rs_{rule.name}_{key}": value for key, value in named.items()}
    return report


# --- KL penalties, losses, advantages ---


def kl_penalty(delta: float, name: str) -> float:
    base = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(name, name)
    if base == "k3":
        return k3(-clamp(delta, -CLAMP, CLAMP))
    return {"k1": delta, "abs": abs(delta), "k2": k2(delta)}[base]


def kl_gradient(delta: float, name: str) -> float:
    """d value / d log π_θ; the "+" forms have the gradient of k2, and k3 keeps its edge gradient beyond ±20."""
    if name.endswith("+"):
        return delta
    base = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(name, name)
    if base == "k3":
        return 1 - math.exp(-clamp(delta, -CLAMP, CLAMP))
    return {"k1": 1.0, "abs": (delta > 0) - (delta < 0), "k2": delta}[base]


def ppo_clip(log_prob: float, old: float, advantage: float, low: float, high: float) -> float:
    rho = ratio(log_prob - old)
    return max(-advantage * rho, -advantage * clamp(rho, 1 - low, 1 + high))


def gae(
    rewards: list[float], values: list[float], mask: list[bool], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """One row, forward from every real token: A_t = Σ_k (γλ)^k δ_{t+k} over the real tokens only."""
    places = [t for t, m in enumerate(mask) if m]
    r, v = [rewards[t] for t in places], [values[t] for t in places]
    deltas = [r[i] + gamma * (v[i + 1] if i + 1 < len(v) else 0.0) - v[i] for i in range(len(v))]
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    for i, t in enumerate(places):
        advantages[t] = sum((gamma * lam) ** k * x for k, x in enumerate(deltas[i:]))
        returns[t] = advantages[t] + values[t]
    return advantages, returns
