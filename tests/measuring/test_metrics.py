"""What a report holds, what `describe` says of it, and which of verl's names have another number here."""

import math

import pytest
import torch
from reference import CASES, VERL, batch, config

from rlcorr import PRESETS, evaluate, metrics, preset
from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import METRICS, PREFIX
from rlcorr.measuring.metrics import describe, means
from rlcorr.measuring.moments import MomentTable, RuleKey


def test_a_report_tells_what_was_measured_and_no_more() -> None:
    """Two values of d, 1 and 2: mean 3/2, mean d²/2 = 5/4, spread 1/2."""
    rows = [[2.0, 3.0, 5.0, 1.0, 2.0], [2.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, math.inf, -math.inf]]
    two = MomentTable(("d", "zero", "never"), torch.tensor(rows))
    told = {"tokens": 2, "kl": -1.5, "k2_kl": 1.25, "log_ratio_mean": 1.5, "log_ratio_std": 0.5}
    assert metrics(two) == {PREFIX + key: value for key, value in told.items()}
    assert means(two) == {"d": 1.5, "zero": 0}


def test_the_extremes_of_a_rule_are_those_of_what_it_compares() -> None:
    """Tokens of 1 and 3, rows of 2: a token rule compares tokens, a sequence rule rows."""
    table = torch.tensor([[2.0, 4.0, 10.0, 1.0, 3.0], [1.0, 2.0, 4.0, 2.0, 2.0]])
    for rule, extremes in (("token_k1", [3.0, 1.0]), ("seq_mean_k1", [2.0, 2.0])):
        report = metrics(MomentTable((RuleKey(rule, "statistic"), RuleKey(rule, "seq")), table))
        assert [report[f"{PREFIX}rollout_rs_{rule}_log_ratio_{side}"] for side in ("max", "min")] == extremes
        assert means(MomentTable((RuleKey(rule, "statistic"), RuleKey(rule, "seq")), table)) == {}


# --- describe ---


def test_every_key_of_a_report_is_described() -> None:
    given = batch("identical")
    given = given.replace(advantages=torch.ones_like(given.rollout_log_probs))
    keys = {key for name in PRESETS for key in evaluate(given, preset(name))[1]}
    assert len(keys) > 100, "presets bring their rules' keys"
    for key in sorted(keys):
        assert describe(key) == describe(key.removeprefix(PREFIX)), key
        assert all(f"{part}: " in describe(key) for part in ("Formula", "Range", "Bad")), key


def test_a_description_has_the_meaning_and_the_formula() -> None:
    for key, metric in METRICS.items():
        for part in (metric.meaning, metric.formula, metric.range, metric.bad):
            assert part in describe(key), (key, part)


def test_unknown_metric_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown metric 'k3_lk'\. Did you mean 'k3_kl'"):
        describe("rollout_corr/k3_lk")


# --- a name of verl's has verl's number ---

OF_K1 = (
    "mean", "max", "min", "fraction_high", "fraction_low", "seq_mean", "seq_max", "seq_min", "seq_fraction_high",
    "seq_fraction_low",
)  # fmt: skip
ANOTHER_NAME = {f"rollout_rs_{rule}_{key}" for rule in ("token_k1", "seq_sum_k1", "seq_mean_k1") for key in OF_K1}
# verl clamps d = −30 before it sums k1; a NaN is nobody's number.
ORDINARY = [case for case in CASES if case != "huge_minus30" and not case.startswith("nan")]


def test_a_name_of_verls_has_verls_number_or_is_not_there() -> None:
    """Over every configuration and batch that the real verl was run on."""
    compared, missing = set(), set()
    for run in (*VERL["is"].values(), *VERL["rs"].values()):
        for case in ORDINARY:
            theirs = {key: float(x) for key, x in run["cases"][case].get("metrics", {}).items()}
            ours = evaluate(batch(case), config(run["config"]))[1]
            for key, want in theirs.items():
                # A spread is a difference of squares in float32, see test_diagnostics.
                if PREFIX + key not in ours:
                    missing.add(key)
                    continue
                compared.add(key)
                spread = 2e-4 if "std" in key else 5e-6
                assert math.isclose(ours[PREFIX + key], want, rel_tol=5e-5, abs_tol=spread), (key, case)
    assert missing == ANOTHER_NAME
    # Normalisation differs only beside a rule, a combination that verl was not run on.
    assert {key for key in compared if "verl's number" in describe(key)} == {"rollout_is_batch_norm_factor"}


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("rollout_rs_token_k1_log_ratio_mean", "minus ours, because its statistic of k1 is −log r"),
        ("rollout_rs_seq_sum_k1_log_ratio_seq_max", "minus our seq_min, because"),
        ("rollout_rs_seq_mean_k1_log_ratio_fraction_low", "verl's number: our fraction_high, because"),
    ],
)
def test_what_describe_says_of_verls_number(key: str, says: str) -> None:
    assert says in describe(key)


def test_other_divergences_have_verls_numbers() -> None:
    assert "verl's number" not in describe("rollout_rs_seq_mean_k3_mean")
