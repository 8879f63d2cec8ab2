"""Metrics against the scalar oracle, against verl's where the definitions agree, and both numbers where they do not."""

import itertools
import math
from typing import Any

import oracle
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import CASES, VERL, batch, config, tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, evaluate, measure, metrics, preset
from rlcorr.correction import row_blocks
from rlcorr.errors import UsageError
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


@oracle.examples(140)
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


@oracle.examples(75)
@given(
    oracle.pairs(wild=False),
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from(["nothing", "token", "sequence", "geometric", "prefix", "icepop"]),
)
def test_microbatches_merge_to_the_whole(pairs: oracle.Pairs, first: int, second: int, name: str) -> None:
    """Batch normalisation is left out: a micro-batch does not know the mean of the others."""
    settings, whole = CONFIGS[name], oracle.to_batch(pairs)
    edges = [0, *sorted(min(x, len(whole.response_mask)) for x in (first, second)), len(whole.response_mask)]
    parts = [whole.rows(torch.arange(a, b)) for a, b in itertools.pairwise(edges)]
    measured = [measure(part, correct(part, settings), settings) for part in parts]
    together = {key.removeprefix(PREFIX): value for key, value in metrics(merge(measured)).items()}
    assert together == pytest.approx(report(whole, settings), rel=1e-9, abs=1e-9)


def test_merging_is_not_averaging() -> None:
    """One row of 1 token with d = 1, one of 3 tokens with d = 0: mean |d| is 0.25, not 0.5, and the maximum is 1."""
    whole = TokenBatch.from_log_probs(
        torch.tensor([[-1.0, 0.0, 0.0], [-2.0, -2.0, -2.0]]),
        torch.tensor([[-2.0, 0.0, 0.0], [-2.0, -2.0, -2.0]]),
        torch.tensor([[1, 0, 0], [1, 1, 1]]),
    )
    settings = CorrectionConfig()
    parts = [whole.rows(torch.tensor([b])) for b in (0, 1)]
    got = metrics(merge(measure(part, correct(part, settings), settings) for part in parts))
    assert got[PREFIX + "abs_log_ratio"] == 0.25
    assert got[PREFIX + "abs_log_ratio_max"] == 1.0
    assert got[PREFIX + "tokens"] == 4


def test_without_tokens_everything_is_finite() -> None:
    """verl raises AssertionError here."""
    for name, shape in itertools.product(CONFIGS, [(0, 3), (2, 0), (2, 3)]):
        nan = torch.full(shape, math.nan)
        got = report(TokenBatch.from_log_probs(nan, nan, torch.zeros(shape)).replace(advantages=nan), CONFIGS[name])
        assert got.pop("rollout_is_batch_norm_factor", 1.0) == 1.0, (name, shape)
        assert {key: value for key, value in got.items() if value != 0} == {}, (name, shape)


def test_all_rejected_is_finite() -> None:
    """The weights of rejected tokens are still there to be looked at: only kept_fraction says that none counts."""
    settings = CorrectionConfig(rollout_is="token", rollout_rs=(RejectionRule.named("token_k1", lower=9.0, upper=9.5),))
    got = report(batch("holes_mask"), settings)
    assert all(math.isfinite(value) for value in got.values())
    assert got["kept_fraction"] == 0
    assert got["rollout_rs_masked_fraction"] == got["rollout_rs_seq_masked_fraction"] == 1
    assert got["rollout_rs_token_k1_masked_fraction"] == 1


def test_an_infinite_threshold_is_never_exceeded() -> None:
    got = report(batch("holes_mask"), CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf))
    assert got["rollout_is_ratio_fraction_high"] == got["rollout_is_ratio_fraction_low"] == 0
    assert got["rollout_is_max"] == pytest.approx(math.exp(0.4), rel=1e-5)


def test_perplexity_of_bf16_is_computed_in_float32() -> None:
    """300 log-probs of −1.0078125, −1 in turn: their bf16 sum would stick at multiples of 2."""
    old = torch.tensor([[-1.0078125, -1.0] * 150], dtype=torch.bfloat16)
    got = report(TokenBatch.from_log_probs(old, old, torch.ones(1, 300)), CorrectionConfig())
    assert got["training_log_ppl"] == pytest.approx(1.00390625, rel=1e-6)
    assert got["rollout_ppl"] == pytest.approx(math.exp(1.00390625), rel=1e-6)


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


def test_pi_old_is_needed() -> None:
    given = batch("identical")
    result = correct(given, CorrectionConfig())
    with pytest.raises(UsageError, match="needs old_log_probs"):
        measure(given.replace(old_log_probs=None), result, CorrectionConfig())


# --- verl's numbers, where the definitions agree ---

OFFPOLICY = sorted(VERL["offpolicy_metrics"]["identical"])
SEQUENCE_WEIGHT = ["rollout_is_mean", "rollout_is_std", "rollout_is_eff_sample_size"]
# At sequence level verl's max, min and fractions are of other things than the weights: tested below.
TOKEN_WEIGHT = [
    *SEQUENCE_WEIGHT,
    "rollout_is_max",
    "rollout_is_min",
    "rollout_is_ratio_fraction_high",
    "rollout_is_ratio_fraction_low",
]


def assert_same(got: dict[str, float], golden: dict[str, Any], keys: list[str], case: str) -> None:
    want = {key: float(golden[key]) for key in keys}
    for key in keys:
        # verl takes the standard deviation as a difference in float32, and k3 loses digits to cancellation there.
        tolerance = 2e-4 if key.endswith("std") else 5e-6
        assert got[key] == pytest.approx(want[key], rel=5e-5, abs=tolerance, nan_ok=True), (case, key)


def test_cases_are_many() -> None:
    assert len(CASES) >= 14


def test_offpolicy_like_verl() -> None:
    for case in CASES:
        # verl does not clamp d in k3_kl: tested below.
        keys = [key for key in OFFPOLICY if (key, case) != ("k3_kl", "huge_minus30")]
        assert_same(report(batch(case), CorrectionConfig()), VERL["offpolicy_metrics"][case], keys, case)


@pytest.mark.parametrize("options", [o for o in VERL["is"] if o.endswith("bn=0")])
def test_weight_metrics_like_verl(options: str) -> None:
    golden = VERL["is"][options]
    keys = TOKEN_WEIGHT if options.startswith("token") else SEQUENCE_WEIGHT
    cases = [case for case in CASES if "metrics" in golden["cases"][case]]
    assert cases
    for case in cases:
        assert_same(report(batch(case), config(golden["config"])), golden["cases"][case]["metrics"], keys, case)


RULE_KEYS = ("mean", "max", "min", "std", "seq_mean", "seq_std", "seq_max", "seq_min", "seq_max_deviation",
             "fraction_high", "fraction_low", "seq_fraction_high", "seq_fraction_low", "masked_fraction",
             "seq_masked_fraction")  # fmt: skip
# verl's statistic of k1 is −log r, ours log r: the sign changes, and with it what is high and what is low.
TURNED = {
    "mean": "mean",
    "seq_mean": "seq_mean",
    "max": "min",
    "min": "max",
    "seq_max": "seq_min",
    "seq_min": "seq_max",
}
SIDES = {"fraction_high": "fraction_low", "seq_fraction_high": "seq_fraction_low"}
SIDES |= {low: high for high, low in SIDES.items()}


def as_verl(got: dict[str, float], rule: RejectionRule, key: str) -> float:
    prefix = f"rollout_rs_{rule.name}_"
    if rule.divergence != "k1":
        return got[prefix + key]
    if key in TURNED:
        return -got[f"{prefix}log_ratio_{TURNED[key]}"]
    return got[f"{prefix}log_ratio_{SIDES[key]}" if key in SIDES else prefix + key]


def test_rule_metrics_like_verl() -> None:
    """The rejected fractions, and all 14 or 15 keys of each rule; where d passes ±20 verl clamps it per token before
    the k1 sum, ours does not."""
    for options in VERL["rs"]:
        assert_rule_metrics_like_verl(options)


def assert_rule_metrics_like_verl(options: str) -> None:
    settings = config(VERL["rs"][options]["config"])
    for case in CASES:
        golden = VERL["rs"][options]["cases"][case]["metrics"]
        got = report(batch(case), settings)
        shares = [f"rollout_rs_{rule.name}_masked_fraction" for rule in settings.rollout_rs]
        keys = [*shares, "rollout_rs_masked_fraction", "rollout_rs_seq_masked_fraction"]
        assert_same(got, golden, keys, f"{options}: {case}")
        for rule in settings.rollout_rs:
            if case == "huge_minus30" and rule.divergence == "k1":
                continue
            keys = [key for key in RULE_KEYS if f"rollout_rs_{rule.name}_{key}" in golden]
            assert len(keys) == (15 if rule.divergence == "k1" else 14), (options, case)
            ours = {f"rollout_rs_{rule.name}_{key}": as_verl(got, rule, key) for key in keys}
            assert_same(ours, golden, list(ours), f"{options}: {case}")


@oracle.examples(60)
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


def test_one_probability_has_no_correlation() -> None:
    one = TokenBatch.from_log_probs(torch.tensor([[-1.0]]), torch.tensor([[-2.0]]), torch.ones(1, 1))
    assert metrics(measure_probabilities(one))["training/rollout_actor_probs_pearson_corr"] == 0


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


# --- verl's faults: its number and ours ---


def test_rows_without_tokens_do_not_count() -> None:
    """One row with −9 against −10, and three of padding. verl averages over four rows: ppl (e⁹ + 3)/4 = 2026.5."""
    golden = VERL["offpolicy_metrics"]["three_padding_rows"]
    got = report(batch("three_padding_rows"), CorrectionConfig())
    both = {
        "training_ppl": (2026.521, math.exp(9)),
        "training_log_ppl": (2.25, 9.0),
        "rollout_ppl": (5507.366, math.exp(10)),
        "rollout_log_ppl": (2.5, 10.0),
        "log_ppl_diff": (-0.25, -1.0),
        "log_ppl_abs_diff": (0.25, 1.0),
        "log_ppl_diff_max": (0, -1.0),
        "log_ppl_diff_min": (-1, -1.0),
        "ppl_ratio": (0.84196985, math.exp(-1)),  # (e⁻¹ + 3)/4
        "chi2_seq": (100.6072, math.exp(6) - 1),  # (e⁶ + 3)/4 − 1
        "kl": (-1, -1.0),  # over tokens, so padding rows never mattered
    }
    assert {key: golden[key] for key in both} == {key: theirs for key, (theirs, _) in both.items()}
    assert {key: got[key] for key in both} == pytest.approx({key: ours for key, (_, ours) in both.items()}, rel=1e-5)


def test_rejected_sequences_are_a_share_of_those_with_tokens() -> None:
    golden = VERL["pipeline"]["decoupled_geo_rs"]["three_padding_rows"]["metrics"]
    assert golden["rollout_rs_seq_masked_fraction"] == 0.25
    assert report(batch("three_padding_rows"), preset("decoupled_geo_rs"))["rollout_rs_seq_masked_fraction"] == 1


def test_no_weight_left_is_an_effective_sample_size_of_zero() -> None:
    golden = VERL["pipeline"]["decoupled_token_icepop"]["all_low"]
    assert (golden["error"], golden["message"]) == ("ZeroDivisionError", "float division by zero")
    got = report(batch("all_low"), preset("decoupled_token_icepop"))
    assert got["rollout_is_eff_sample_size"] == 0
    assert got["rollout_is_mean"] == got["rollout_is_std"] == got["rollout_is_max"] == 0


def test_max_and_min_are_verls_and_those_of_the_weights_that_are_used_have_another_name() -> None:
    """verl reports e^ΣS before the bounds at sequence level, clamped above only: here e³ = 20.09 for a weight of 2,
    and 0 for the −inf row, whose weight is e^−20."""
    theirs = VERL["is"]["sequence|2.0|bn=0"]["cases"]
    assert theirs["three_padding_rows"]["metrics"]["rollout_is_max"] == 20.085537
    assert theirs["old_neginf_valid"]["metrics"]["rollout_is_min"] == 0
    settings = CorrectionConfig(rollout_is="sequence")
    got = report(batch("three_padding_rows"), settings)
    assert (got["rollout_is_bounded_max"], got["rollout_is_max"]) == (2, pytest.approx(20.085537))
    got = report(batch("old_neginf_valid"), settings)["rollout_is_min"]
    assert got == pytest.approx(math.exp(-20), rel=1e-5)


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


@pytest.mark.parametrize("options", [o for o in VERL["is"] if o.endswith("bn=1")])
def test_metrics_are_of_the_weights_before_normalisation(options: str) -> None:
    """As verl's are; the factor is a metric of its own, and without rejection it is verl's."""
    golden = VERL["is"][options]
    for case in CASES:
        want = golden["cases"][case].get("metrics")
        if want is not None:
            got = report(batch(case), config(golden["config"]))
            assert_same(got, want, [*SEQUENCE_WEIGHT, "rollout_is_batch_norm_factor"], case)


def test_bf16_metrics_are_computed_in_float32() -> None:
    """verl sums bf16 log-probs in bf16. The exact values of the same inputs are the oracle's."""
    given = VERL["inputs"]["bf16_6x10"]
    old, rollout = (tensor(given[key], torch.float64).tolist() for key in ("old_log_prob", "rollout_log_prob"))
    mask = tensor(given["mask"]).bool().tolist()
    exact = oracle.metrics(oracle.Pairs(old, rollout, mask, 10, "bfloat16"), CorrectionConfig())
    got = report(batch("bf16_6x10"), CorrectionConfig())
    theirs = VERL["offpolicy_metrics"]["bf16_6x10"]
    for key in ("training_log_ppl", "rollout_log_ppl", "kl"):
        assert got[key] == pytest.approx(exact[key], rel=1e-5, abs=1e-7)
    assert abs(theirs["kl"] - exact["kl"]) > 1e-5
