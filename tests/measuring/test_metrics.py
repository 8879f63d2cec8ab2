"""What a report holds, what `describe` says of it, and which of verl's names have another number here."""

import math

import pytest
import torch
from reference import CASES, VERL, batch, config

from rlcorr import PRESETS, CorrectionConfig, evaluate, metrics, preset
from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import METRICS, PREFIX
from rlcorr.measuring.metrics import OF_K1, describe, means
from rlcorr.measuring.moments import MomentTable


def test_a_report_tells_what_was_measured_and_no_more() -> None:
    """Two values of d, 1 and 2: mean 3/2, mean d²/2 = 5/4, spread 1/2."""
    rows = [[2.0, 3.0, 5.0, 1.0, 2.0], [2.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, math.inf, -math.inf]]
    two = MomentTable(("d", "zero", "never"), torch.tensor(rows))
    told = {"tokens": 2, "kl": -1.5, "k2_kl": 1.25, "log_ratio_mean": 1.5, "log_ratio_std": 0.5}
    assert metrics(two) == {PREFIX + key: value for key, value in told.items()}
    assert means(two) == {"d": 1.5, "zero": 0}


# verl clamps d = −30 before it sums k1; a NaN is nobody's number.


def test_every_key_of_a_report_is_described() -> None:
    given = batch("identical")
    given = given.replace(advantages=torch.ones_like(given.rollout_log_probs))
    keys = {key for name in PRESETS for key in evaluate(given, preset(name))[1]}
    assert len(keys) > 100, "presets bring their rules' keys"
    for key in sorted(keys):
        assert describe(key) == describe(key.removeprefix(PREFIX)), key
        assert all(f"{part}: " in describe(key) for part in ("Formula", "Range", "Bad")), key
    for key, metric in METRICS.items():
        assert all(part in describe(key) for part in (metric.meaning, metric.formula, metric.range, metric.bad)), key
    with pytest.raises(UsageError, match=r"unknown metric 'k3_lk'\. Did you mean 'k3_kl'"):
        describe("rollout_corr/k3_lk")


def verls_number(ours: dict[str, float], key: str) -> float:
    """Return verl's number of this name. Its statistic of k1 is −log r: the sign and what is high or low change."""
    if PREFIX + key in ours:
        return ours[PREFIX + key]
    rule, _, base = key.partition("_k1_")
    number = ours[f"{PREFIX}{rule}_k1_log_ratio_{OF_K1[base]}"]
    return number if "fraction" in base else -number


def test_numbers_like_verl() -> None:
    """Over every configuration and batch that the real verl was run on, except those with a NaN.

    verl clamps d = −30 before it sums k1, but not in k3_kl.
    """
    compared, others = set(), set()
    runs = [(config(run["config"]), run["cases"]) for run in (*VERL["is"].values(), *VERL["rs"].values())]
    runs.append((CorrectionConfig(), {case: {"metrics": x} for case, x in VERL["offpolicy_metrics"].items()}))
    for settings, cases in runs:
        for case in (case for case in CASES if not case.startswith("nan")):
            ours = evaluate(batch(case), settings)[1]
            for key, want in cases[case].get("metrics", {}).items():
                if case == "huge_minus30" and (key == "k3_kl" or "_k1_" in key):
                    continue
                (compared if PREFIX + key in ours else others).add(key)
                spread = 2e-4 if "std" in key else 5e-6  # verl's is a difference of squares in float32
                got = verls_number(ours, key)
                assert math.isclose(got, float(want), rel_tol=5e-5, abs_tol=spread), (key, case)
    assert others == {f"rollout_rs_{rule}_{key}" for rule in ("token_k1", "seq_sum_k1", "seq_mean_k1") for key in OF_K1}
    assert {"k3_kl", "training_ppl", "rollout_is_mean", "rollout_rs_masked_fraction"} <= compared
    # Normalisation differs only together with a rule, a combination that verl was not run on.
    assert {key for key in compared if "verl's number" in describe(key)} == {"rollout_is_batch_norm_factor"}


def test_a_description_contains_verls_number_of_that_name_if_it_differs() -> None:
    because = ", because its statistic of k1 is −log r"
    for key, says in {
        "token_k1_log_ratio_mean": f"verl's number: minus ours{because}",
        "seq_sum_k1_log_ratio_seq_max": f"verl's number: minus our seq_min{because}",
        "seq_mean_k1_log_ratio_fraction_low": f"verl's number: our fraction_high{because}",
    }.items():
        assert says in describe(f"rollout_rs_{key}")
    assert "verl's number" not in describe("rollout_rs_seq_mean_k3_mean")
