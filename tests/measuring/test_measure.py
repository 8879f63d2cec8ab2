"""Metrics against the scalar oracle, and where digits or bounds matter; `test_metrics` has the numbers of verl."""

import itertools
import math

import oracle
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import VERL, batch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, evaluate, measure, metrics
from rlcorr.correction import row_blocks
from rlcorr.measuring.measure import measure_probabilities, merge
from rlcorr.measuring.metric_definitions import METRICS, PREFIX
from rlcorr.weights import LEVELS

RULES = (
    RejectionRule.named("token_k1", lower=0.6, upper=1.7),
    RejectionRule.named("seq_mean_k3", upper=0.5),
    RejectionRule.named("seq_max_k2", upper=3.0),
)
CONFIGS = {
    "nothing": CorrectionConfig(),
    "token": CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5, rollout_rs=RULES[:1]),
    "sequence": CorrectionConfig(rollout_is="sequence", rollout_is_threshold=5.0, rollout_rs=RULES),
    "geometric": CorrectionConfig(rollout_is="geometric", rollout_is_threshold_lower=0.9, rollout_rs=RULES[1:]),
    "prefix": CorrectionConfig(rollout_is="prefix", rollout_is_threshold=3.0, rollout_rs=RULES[:2]),
    "normalised prefix": CorrectionConfig(
        rollout_is="prefix", rollout_is_threshold_lower=0.9, rollout_is_mode="mask", rollout_is_batch_normalize=True
    ),
    "icepop": CorrectionConfig(
        rollout_is="token", rollout_is_mode="mask", rollout_is_threshold_lower=0.9, rollout_is_threshold=1.2
    ),
    "rules of every kind": CorrectionConfig(
        rollout_is="sequence",
        rollout_is_mode="mask",
        rollout_is_threshold_lower=0.5,
        rollout_rs=(
            RejectionRule.named("token_prob_diff_outward", lower=-0.05, upper=0.1),
            RejectionRule.named("seq_min_k1", lower=0.5),
            RejectionRule.named("seq_mean_k1_negative", lower=0.9),
            RejectionRule.named("token_binary_kl", upper=0.02),
        ),
    ),
    "normalised": CorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True, rollout_rs=RULES[:2]),
}


def report(given: TokenBatch, settings: CorrectionConfig) -> dict[str, float]:
    """The report with the prefix taken off."""
    _, numbers = evaluate(given, settings)
    assert all(key.startswith(PREFIX) for key in numbers)
    return {key.removeprefix(PREFIX): value for key, value in numbers.items()}


def tolerance(key: str, expected: dict[str, float]) -> float:
    """Squares are summed in float32, to 3e-7 of the largest, so a std is known to the root of that."""
    if not key.endswith("std"):
        return 2e-6
    base = key.removesuffix("std").replace("log_ratio_", "abs_log_ratio_").replace("abs_abs", "abs")
    return 6e-4 * max(1.0, *(abs(expected.get(base + end, 0.0)) for end in ("max", "min")))


@oracle.examples(120)
@given(oracle.pairs(wild=False), st.sampled_from(sorted(CONFIGS)))
def test_every_metric(pairs: oracle.Pairs, name: str) -> None:
    settings = CONFIGS[name]
    assume(not oracle.correct(pairs, settings).doubtful)
    got, expected = report(oracle.to_batch(pairs), settings), oracle.metrics(pairs, settings)
    assert sorted(got) == sorted(expected)
    for key, want in expected.items():
        assert got[key] == pytest.approx(want, rel=2e-5, abs=tolerance(key, expected)), key
    assert all(0 <= got[key] <= 1 + 1e-6 for key in got if key.endswith("eff_sample_size"))


def test_the_oracle_knows_every_metric() -> None:
    """So that test_every_metric cannot miss one that is added later."""
    pairs = oracle.Pairs([[-1.0]], [[-1.0]], [[True]], 1, "float32")
    veto = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_min_k1", lower=0.1),))
    computed = {key for config in (veto, CONFIGS["normalised"]) for key in oracle.metrics(pairs, config)}
    assert set(METRICS) <= computed


@oracle.examples(40)
@given(
    oracle.pairs(wild=False),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from(sorted(set(CONFIGS) - {"normalised", "normalised prefix"})),
)
def test_microbatches_merge_to_the_whole(pairs: oracle.Pairs, first: int, second: int, name: str) -> None:
    """Batch normalisation is left out: a micro-batch does not know the mean of the others."""
    settings, whole = CONFIGS[name], oracle.to_batch(pairs)
    edges = [0, *sorted(min(x, len(whole.response_mask)) for x in (first, second)), len(whole.response_mask)]
    parts = [whole.rows(torch.arange(a, b)) for a, b in itertools.pairwise(edges)]
    measured = [measure(part, correct(part, settings), settings) for part in parts]
    together = {key.removeprefix(PREFIX): value for key, value in metrics(merge(measured)).items()}
    assert together == pytest.approx(report(whole, settings), rel=1e-9, abs=1e-9)


def test_a_small_mismatch_keeps_its_digits() -> None:
    """d = ±2⁻¹³: the spread of the weights is sinh 2⁻¹³; of 1 + r² or (r − 2)² in float32 nothing would be left."""
    d = 2.0**-13
    given = TokenBatch.from_log_probs(torch.tensor([[-1 + d, -1 - d]]), torch.full((1, 2), -1.0), torch.ones(1, 2))
    got = report(given, CorrectionConfig(rollout_is="token"))
    for key in ("rollout_is_std", "rollout_is_raw_std", "is_ratio_std"):
        assert got[key] == pytest.approx(math.sinh(d), rel=1e-3), key


def test_blocks_are_measured_as_one_batch() -> None:
    """Two rows of 2¹⁸ tokens, one block each, with d = 0 and 1."""
    old = torch.tensor([[-1.0], [0.0]]).expand(2, 1 << 18)
    given = TokenBatch.from_log_probs(old, torch.full_like(old, -1.0), torch.ones_like(old))
    got = report(given, CorrectionConfig())
    told = ("tokens", "sequences", "log_ratio_mean", "log_ratio_std", "abs_log_ratio_min", "abs_log_ratio_max")
    assert len(row_blocks(given)) == 2
    assert [got[key] for key in told] == [1 << 19, 2, 0.5, 0.5, 0, 1]


@oracle.examples(30)
@given(oracle.pairs(wild=False))
def test_probability_metrics(pairs: oracle.Pairs) -> None:
    got = metrics(measure_probabilities(oracle.to_batch(pairs)))
    marked = [list(zip(*rows, strict=True)) for rows in zip(pairs.old, pairs.rollout, pairs.mask, strict=True)]
    p, q = ([math.exp(x[side]) for row in marked for x in row if x[2]] for side in (0, 1))
    gaps = [abs(a - b) for a, b in zip(p, q, strict=True)]
    covariance = oracle.mean([a * b for a, b in zip(p, q, strict=True)]) - oracle.mean(p) * oracle.mean(q)
    scale = oracle.std(p) * oracle.std(q)
    assert got["training/rollout_probs_diff_valid"] == float(bool(p))
    assert got["training/rollout_probs_diff_max"] == pytest.approx(oracle.largest(gaps))
    assert got["training/rollout_probs_diff_mean"] == pytest.approx(oracle.mean(gaps))
    assert got["training/rollout_probs_diff_std"] == pytest.approx(oracle.sample_std(gaps), abs=1e-7)
    if scale > 1e-3:
        assert got["training/rollout_actor_probs_pearson_corr"] == pytest.approx(covariance / scale, abs=1e-6)


@pytest.mark.parametrize("reduce", ["", "seq_min_"])
def test_what_lies_on_a_bound_is_inside(reduce: str) -> None:
    """Policies that agree, between bounds of 1 and 1: nothing is high, low, outside or rejected."""
    given = batch("identical")
    rule = RejectionRule.named(f"{reduce or 'token_'}k1", lower=1.0, upper=1.0)
    for level, lower in itertools.product(LEVELS, (None, 1.0)):
        settings = CorrectionConfig(
            rollout_is=level, rollout_is_threshold_lower=lower, rollout_rs=(rule,), rollout_is_threshold=1.0
        )
        got = report(given, settings)
        shares = [key for key in got if "fraction" in key or "oob" in key]
        assert {key: got[key] for key in shares if got[key] != 0} == {"kept_fraction": 1}


def test_k3_is_finite_for_an_impossible_token() -> None:
    """d = −inf on one of six tokens: verl's k3_kl is infinite, ours counts e^−20 − 1 + 20 = 19 for it."""
    assert VERL["offpolicy_metrics"]["old_neginf_valid"]["k3_kl"] == "inf"
    others = [oracle.k3(x) for x in (0.1, 0.2, -0.1, 0.1, 0.3)]
    got = report(batch("old_neginf_valid"), CorrectionConfig())["k3_kl"]
    assert got == pytest.approx((sum(others) + math.exp(-20) + 19) / 6, rel=1e-5)
    # The same clamp on d = −30, one of eight tokens: verl counts e^−30 − 1 + 30 = 29, ours 19, ten eighths less.
    theirs = VERL["offpolicy_metrics"]["huge_minus30"]["k3_kl"]
    got = report(batch("huge_minus30"), CorrectionConfig())["k3_kl"]
    assert theirs == 3.631914
    assert got == pytest.approx(3.631914 - 10 / 8, rel=1e-5)
