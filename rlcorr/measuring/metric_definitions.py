"""Definitions of the metrics: the quantity that each reads, its formula, its range, and the meaning of a bad value.

Means "per sequence" or "over rows" are over the sequences that have tokens. All metrics are 0 if nothing was measured.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

PREFIX = "rollout_corr/"


@dataclass(frozen=True)
class HostMoments:
    """Moments as Python floats, on the host."""

    count: float
    total: float
    squares: float
    low: float
    high: float


def mean(m: HostMoments) -> float:
    """Return the mean Σx/n."""
    return m.total / m.count if m.count else 0.0


def std(m: HostMoments) -> float:
    """Return the population standard deviation, with n in the denominator."""
    return math.sqrt(max(m.squares / m.count - mean(m) ** 2, 0.0)) if m.count else 0.0


def sample_std(m: HostMoments) -> float:
    """Return the standard deviation with n − 1 in the denominator; 0 for one value."""
    return std(m) * math.sqrt(m.count / (m.count - 1)) if m.count > 1 else 0.0


def largest(m: HostMoments) -> float:
    """Return max x."""
    return m.high if m.count else 0.0


def smallest(m: HostMoments) -> float:
    """Return min x."""
    return m.low if m.count else 0.0


def chi2(excess: HostMoments) -> float:
    """Compute χ² = mean(r²) − 1 = mean(2e + e²) from the moments of e = r − 1, which keeps the digits of a small e."""
    return (2 * excess.total + excess.squares) / excess.count if excess.count else 0.0


def effective_share(weights: HostMoments, tokens: HostMoments | None = None) -> float:
    """Return (Σw)²/(n Σw²), the effective sample size of weights as a share of n (Kish, 1965); 0 if all are 0.

    n counts the weights, or `tokens`, among which may be rejected ones. For weights ≥ 0 it is in [0, 1].
    """
    n = (weights if tokens is None else tokens).count
    return weights.total**2 / (n * weights.squares) if weights.squares else 0.0


def correlation(p: HostMoments, q: HostMoments, p_plus_q: HostMoments) -> float:
    """Compute Pearson's r from the variances of p, q and p + q."""
    scale = std(p) * std(q)
    return (std(p_plus_q) ** 2 - std(p) ** 2 - std(q) ** 2) / (2 * scale) if scale else 0.0


@dataclass(frozen=True)
class Metric:
    """One metric: which moments it reads, how it is computed, and what it means."""

    quantity: str
    read: Callable[..., float]
    formula: str
    meaning: str
    range: str
    bad: str
    also: tuple[str, ...] = ()
    """Further quantities whose moments `read` takes, after those of `quantity`."""
    verl: str = ""
    """How verl's number of this name differs. Rules of k1 are in `metrics`."""


_REAL, _POSITIVE, _SHARE, _RATIO = "any real number", "≥ 0", "0 to 1", "> 0; 1 if the policies agree"
_EMPTY = "0: there was nothing to train on"
_DRIFT = "growing over steps: the engine and the trainer drift apart"
_TAIL = "far above the mean: a few tokens decide the gradient"


METRICS: dict[str, Metric] = {
    # --- the batch ---
    "tokens": Metric("d", lambda m: m.count, "Σ mask", "response tokens measured", _POSITIVE, _EMPTY),
    "sequences": Metric("seq_excess", lambda m: m.count, "rows with a token", "sequences measured", _POSITIVE, _EMPTY),
    "kept_fraction": Metric("kept", mean, "Σ keep / Σ mask", "share of the response tokens that no rule rejected",
        _SHARE, "near 0: the rules leave nothing to learn from"),
    # --- how far the policies are apart ---
    "kl": Metric("d", lambda m: -mean(m), "mean(−d)", "k1 estimate of KL(π_rollout‖π_old)", _REAL, _DRIFT),
    "k2_kl": Metric("d", lambda m: m.squares / m.count / 2 if m.count else 0.0, "mean(d²)/2",
        "k2 estimate of the same divergence, biased, with little noise", _POSITIVE, _DRIFT),
    "k3_kl": Metric("k3", mean, "mean(eᵈ − 1 − d)", "k3 estimate of the same divergence, unbiased, never negative",
        _POSITIVE, "above 1e-3 in bf16 or above 1e-2 anywhere: look for a cause before tuning a threshold"),
    "log_ratio_mean": Metric("d", mean, "mean d", "mean of d = log π_old − log π_rollout", _REAL, _DRIFT),
    "log_ratio_std": Metric("d", std, "std d", "spread of the log-ratios", _POSITIVE, _DRIFT),
    "abs_log_ratio": Metric("abs_d", mean, "mean |d|", "distance of the two log-probs on a typical token", _POSITIVE,
        "above 0.03: more than rounding in bf16 explains"),
    "abs_log_ratio_std": Metric("abs_d", std, "std |d|", "spread of that distance", _POSITIVE, _TAIL),
    "abs_log_ratio_max": Metric("abs_d", largest, "max |d|", "the worst token", _POSITIVE, _TAIL),
    "abs_log_ratio_min": Metric("abs_d", smallest, "min |d|", "the best token", _POSITIVE,
        "well above 0: a constant offset, such as a temperature that only one side applies"),
    "is_ratio_mean": Metric("ratio", mean, "mean r", "mean token ratio, unbounded", _RATIO,
        "far from 1 although E[r] = 1: tokens that the engine never samples carry weight"),
    "is_ratio_std": Metric("ratio_excess", std, "std r", "spread of the token ratios", _POSITIVE, _TAIL),
    "is_ratio_max": Metric("ratio", largest, "max r", "largest token ratio", _RATIO, _TAIL),
    "is_ratio_min": Metric("ratio", smallest, "min r", "smallest token ratio", _RATIO,
        "near 0: the trainer finds a sampled token all but impossible"),
    "ratio_eff_sample_size": Metric("ratio", effective_share, "(Σr)²/(n Σr²)",
        "effective sample size of the token ratios, used or not and without bounds, as a share of the tokens", _SHARE,
        "below 0.5: bounds are needed"),
    "chi2_token": Metric("ratio_excess", chi2, "mean(r²) − 1", "χ² divergence of the token ratios",
        "≥ −1; below 0 is noise", "above 1: the variance of unbounded token weights doubles"),
    "chi2_seq": Metric("seq_excess", chi2, "mean((Π r)²) − 1", "χ² divergence of the sequence ratios",
        "≥ −1; below 0 is noise", "above 1: sequence weights are mostly noise"),
    "training_log_ppl": Metric("seq_training_log_ppl", mean, "mean over rows of −mean log π_old",
        "log-perplexity under the trainer", _REAL, "falling to 0: the policy has collapsed"),
    "rollout_log_ppl": Metric("seq_rollout_log_ppl", mean, "mean over rows of −mean log π_rollout",
        "log-perplexity under the engine", _REAL, "falling to 0: the policy has collapsed"),
    "training_ppl": Metric("seq_training_ppl", mean, "mean over rows of exp(−mean log π_old)",
        "perplexity under the trainer", "≥ 1", "much larger than rollout_ppl: the trainer does not know these tokens"),
    "rollout_ppl": Metric("seq_rollout_ppl", mean, "mean over rows of exp(−mean log π_rollout)",
        "perplexity under the engine", "≥ 1", "1: greedy or collapsed sampling"),
    "log_ppl_diff": Metric("seq_log_ppl_diff", mean, "mean over rows of −mean d",
        "log-perplexity, trainer minus engine", _REAL, _DRIFT),
    "log_ppl_abs_diff": Metric("seq_log_ppl_abs_diff", mean, "mean over rows of |mean d|", "size of that difference",
        _POSITIVE, _DRIFT),
    "log_ppl_diff_max": Metric("seq_log_ppl_diff", largest, "max over rows of −mean d",
        "the row that the trainer likes least", _REAL, "large: look at this row's text"),
    "log_ppl_diff_min": Metric("seq_log_ppl_diff", smallest, "min over rows of −mean d",
        "the row that the trainer likes most", _REAL, "very negative: look at this row's text"),
    "ppl_ratio": Metric("seq_ppl_ratio", mean, "mean over rows of exp(−mean d)", "perplexity, trainer over engine",
        _RATIO, _DRIFT),
    # --- importance weights, before batch normalisation ---
    "rollout_is_mean": Metric("weight", mean, "mean w", "mean weight over tokens", "≥ 0",
        "far from 1: the bounds bias the gradient, or its scale is wrong"),
    "rollout_is_std": Metric("weight_excess", std, "std w", "spread of the weights", _POSITIVE, _TAIL),
    "rollout_is_max": Metric("extreme_weight", largest, "max w",
        "largest weight: of tokens after the bounds, of sequences before them, as verl has it", "≥ 0", _TAIL),
    "rollout_is_min": Metric("extreme_weight", smallest, "min w",
        "smallest weight: of tokens after the bounds, of sequences before them, as verl has it", "≥ 0",
        "0 with masking: tokens that teach nothing"),
    "rollout_is_bounded_max": Metric("weight", largest, "max w", "largest weight, after the bounds", "≥ 0", _TAIL),
    "rollout_is_bounded_min": Metric("weight", smallest, "min w", "smallest weight, after the bounds", "≥ 0",
        "0 with masking: tokens that teach nothing"),
    "rollout_is_eff_sample_size": Metric("weight", effective_share, "(Σw)²/(n Σw²)",
        "effective sample size of the bounded weights, before rejection, as a share of the tokens", _SHARE,
        "below 0.5: half of the batch is paid for nothing"),
    "rollout_is_raw_mean": Metric("raw_weight", mean, "mean w before bounds", "mean weight, unbounded", _RATIO,
        "far from rollout_is_mean: the bounds do much"),
    "rollout_is_raw_std": Metric("raw_weight_excess", std, "std w before bounds", "spread of the weights, unbounded",
        _POSITIVE, _TAIL),
    "rollout_is_raw_max": Metric("raw_weight", largest, "max w before bounds", "largest weight, unbounded", _RATIO,
        _TAIL),
    "rollout_is_raw_min": Metric("raw_weight", smallest, "min w before bounds", "smallest weight, unbounded", _RATIO,
        "near 0: the trainer finds what was sampled all but impossible"),
    "rollout_is_raw_eff_sample_size": Metric("raw_weight", effective_share, "(Σw)²/(n Σw²) before bounds",
        "effective sample size of the unbounded weights, as a share of the tokens", _SHARE,
        "near 0: unbounded weights would train on a handful of tokens"),
    "rollout_is_ratio_fraction_high": Metric("weight_high", mean, "share of raw w > upper",
        "tokens, or sequences for sequence weights, above the upper bound", _SHARE,
        "above 0.05: the bound biases more than the tail"),
    "rollout_is_ratio_fraction_low": Metric("weight_low", mean, "share of raw w < lower (1/upper if there is none)",
        "tokens, or sequences for sequence weights, below the lower bound", _SHARE,
        "above 0.05: the bound biases more than the tail"),
    "rollout_is_oob_ratio": Metric("outside", mean, "Σ [raw w outside the configured bounds] / Σ mask",
        "share of the tokens whose weight a bound changed", _SHARE, "above 0.05: the bounds decide, not the ratios"),
    "rollout_is_seq_mean": Metric("seq_weight", mean, "mean over rows of mean w", "mean weight, one vote per row",
        "≥ 0", "far from rollout_is_mean: long rows have other weights than short ones"),
    "rollout_is_seq_std": Metric("seq_weight", sample_std, "sample std over rows of mean w", "spread between rows",
        _POSITIVE, "large: some rows count much more than others"),
    "rollout_is_seq_max": Metric("seq_weight", largest, "max over rows of mean w", "heaviest row", "≥ 0", _TAIL),
    "rollout_is_seq_min": Metric("seq_weight", smallest, "min over rows of mean w", "lightest row", "≥ 0",
        "0: a row that teaches nothing"),
    "rollout_is_seq_max_deviation": Metric("seq_weight_deviation", largest, "max over rows of |mean w − 1|",
        "row furthest from 1", _POSITIVE, _TAIL),
    "rollout_is_seq_fraction_high": Metric("seq_raw_high", mean, "share of rows with mean raw w > upper",
        "rows above the upper bound", _SHARE, "above 0.05: whole answers are over-weighted"),
    "rollout_is_seq_fraction_low": Metric("seq_raw_low", mean, "share of rows with mean raw w < lower (1/upper)",
        "rows below the lower bound", _SHARE, "above 0.05: whole answers are under-weighted"),
    "rollout_is_seq_eff_sample_size": Metric("seq_weight", effective_share, "(Σv)²/(n Σv²), v the mean weight of a row",
        "effective sample size of the rows' mean weights, as a share of the rows", _SHARE,
        "below 0.5: half of the answers are paid for nothing"),
    "rollout_is_batch_norm_factor": Metric("norm_factor", mean, "mean w over the kept tokens (or rows)",
        "what batch normalisation divided the weights by", "> 0", "far from 1: the step size would have changed by it",
        verl="the mean over rejected tokens too, because it normalises before rejection"),
    # --- rejection, all rules together ---
    "rollout_rs_masked_fraction": Metric("rejected", mean, "1 − Σ keep / Σ mask", "share of the tokens rejected",
        _SHARE, "near 1: nothing is left; with a fixed denominator the step shrinks by this share"),
    "rollout_rs_seq_masked_fraction": Metric("seq_rejected", mean, "rows with a rejected token / rows",
        "share of the sequences that lost a token", _SHARE, "near 1: the rules hit everything"),
    "rollout_rs_veto_seq_masked_fraction": Metric("veto", mean, "rows with a ratio outside the veto's bounds / rows",
        "share of the sequences that seq_min_k1 and seq_max_k1 together reject", _SHARE,
        "above 0.01: impossible tokens are common; look at their text before rejecting them"),
    # --- what is trained on, after weights and rejection ---
    "trained_is_mean": Metric("trained", mean, "Σ w over kept / kept", "mean weight of the kept tokens", "≥ 0",
        "far from 1: the step size differs by this factor"),
    "trained_eff_sample_size": Metric("trained", effective_share, "(Σ w)²/(n Σ w²), sums over kept, n all tokens",
        "effective sample size after weights and rejection, as a share of all response tokens", _SHARE,
        "below 0.5: half of the batch is paid for nothing", also=("d",)),
}  # fmt: skip

RULE_METRICS: dict[str, Metric] = {
    "mean": Metric("statistic", mean, "mean s", "mean statistic over tokens", "", "near a bound: much is rejected"),
    "max": Metric("statistic", largest, "max s", "largest statistic", "", "far above the upper bound: outliers"),
    "min": Metric("statistic", smallest, "min s", "smallest statistic", "", "far below the lower bound: outliers"),
    "std": Metric("clamped", std, "std of s clamped to the bounds", "spread within the bounds", _POSITIVE,
        "near 0 while much is rejected: most values lie beyond a bound"),
    "fraction_high": Metric("high", mean, "share of s > upper", "tokens, or sequences for sequence rules, above",
        _SHARE, "one side only: a shift rather than noise"),
    "fraction_low": Metric("low", mean, "share of s < lower", "tokens, or sequences for sequence rules, below", _SHARE,
        "one side only: a shift rather than noise"),
    "seq_mean": Metric("seq", mean, "mean over rows of mean s", "mean statistic, one vote per row", "",
        "near a bound: many rows are rejected"),
    "seq_std": Metric("seq", sample_std, "sample std over rows", "spread between rows", _POSITIVE,
        "large against the width of the bounds: rows are rejected by chance"),
    "seq_max": Metric("seq", largest, "max over rows", "largest row", "", "far above the upper bound: outliers"),
    "seq_min": Metric("seq", smallest, "min over rows", "smallest row", "", "far below the lower bound: outliers"),
    "seq_max_deviation": Metric("seq_deviation", largest, "max over rows of |mean s|", "row furthest from 0", _POSITIVE,
        "far above the bounds: outliers"),
    "seq_fraction_high": Metric("seq_high", mean, "share of rows with mean s > upper", "rows above the upper bound",
        _SHARE, "one side only: a shift rather than noise"),
    "seq_fraction_low": Metric("seq_low", mean, "share of rows with mean s < lower", "rows below the lower bound",
        _SHARE, "one side only: a shift rather than noise"),
    "masked_fraction": Metric("rejected", mean, "Σ rejected / Σ mask",
        "share of the tokens that the rule alone rejects", _SHARE, "near 1: the rule hits everything"),
    "seq_masked_fraction": Metric("seq_rejected", mean, "rows with a rejected token / rows",
        "share of the sequences in which the rule alone rejects a token", _SHARE, "near 1: the rule hits everything"),
}  # fmt: skip


PROBABILITY_METRICS: dict[str, Metric] = {
    "training/rollout_probs_diff_valid": Metric("probs_diff", lambda m: float(m.count > 0), "Σ mask > 0",
        "1 where there was something to compare", "0 or 1", "0: every token is masked"),
    "training/rollout_probs_diff_max": Metric("probs_diff", largest, "max |π_old − π_rollout|", "the worst token",
        _SHARE, "above 0.5: a token that one policy takes for granted and the other does not"),
    "training/rollout_probs_diff_mean": Metric("probs_diff", mean, "mean |π_old − π_rollout|",
        "difference of the two probabilities on a typical token", _SHARE, "above 0.01: more than rounding in bf16"),
    "training/rollout_probs_diff_std": Metric("probs_diff", sample_std, "sample std |π_old − π_rollout|",
        "spread of that difference", _SHARE, _TAIL),
    "training/rollout_actor_probs_pearson_corr": Metric("p", correlation, "cov(π_old, π_rollout)/(σ σ)",
        "correlation of the two probabilities", "−1 to 1",
        "below 0.99: the policies disagree about which tokens are likely", also=("q", "p_plus_q")),
}  # fmt: skip
"""verl's debug metrics, from `measure.measure_probabilities`."""

OBJECTIVE_METRICS: dict[str, Metric] = {
    "actor/pg_loss": Metric("actor/pg_loss", mean, "aggregate(w · L)", "policy loss without its KL terms", _REAL,
        "orders of magnitude above 1: a ratio or an advantage has escaped"),
    "actor/ppo_kl": Metric("actor/ppo_kl", mean, "mean(log π_old − log π_θ)", "how far the update has moved π_θ", _REAL,
        "above 0.1: the step is too large for the clip to be a trust region"),
    "actor/pg_clipfrac": Metric("actor/pg_clipfrac", mean, "share of kept tokens",
        "tokens whose gradient the loss's own clip or mask cuts", _SHARE,
        "above 0.3: most of the batch no longer teaches"),
    "actor/pg_clipfrac_lower": Metric("actor/pg_clipfrac_lower", mean, "share of kept tokens",
        "tokens with A < 0 that the second clip cuts (dual_clip, geo_mean)", _SHARE,
        "above 0.01: bad tokens have become much likelier"),
    "actor/kl_loss": Metric("actor/kl_loss", mean, "mean of the estimator",
        "KL(π_θ‖π_ref) on the tokens of its loss term: the kept ones, or with kl_loss_tokens='response' all", _REAL,
        "growing without end: the policy leaves the reference"),
    "rollout_kl": Metric("rollout_kl", mean, "mean over rows of the mean of the estimator",
        "KL(π_θ‖π_rollout) on all response tokens, rejected or not", _REAL,
        "growing: the trainer drifts from the engine"),
    "kl_left_out": Metric("kl_left_out", mean, "share of response tokens",
        "rejected tokens that count 0 in a KL term, because a log-prob of theirs is not finite", _SHARE,
        "above 0: the engine or the trainer finds a sampled token impossible"),
    "lr_factor": Metric("lr_factor", mean, "aggregate(1 over kept)/aggregate(1 over all)",
        "what rejection multiplies the gradient by", _SHARE, "far from 1: SGD steps less; Adam hides most of it"),
}  # fmt: skip
"""Metrics of the policy loss, from `objective.policy_loss`."""
