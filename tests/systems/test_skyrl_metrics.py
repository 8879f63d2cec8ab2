"""Our metrics under SkyRL's names, against the numbers that SkyRL itself gave."""

import math

import oracle
import pytest
from reference import CASES, GOLDEN, VERL, batch

from rlcorr import CorrectionConfig, evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.systems.skyrl import from_skyrl

METRICS = {
    "is_ratio_mean": "is_ratio_mean",
    "is_ratio_std": "is_ratio_std",
    "is_ratio_max": "is_ratio_max",
    "is_ratio_min": "is_ratio_min",
    "outlier_seq_masked_ratio": "rollout_rs_veto_seq_masked_fraction",
    "outlier_seq_over_high_ratio": "rollout_rs_seq_max_k1_log_ratio_fraction_high",
    "outlier_seq_under_low_ratio": "rollout_rs_seq_min_k1_log_ratio_fraction_low",
    "token_mask_ratio": "rollout_rs_token_k1_masked_fraction",
    "tis_token_clip_high_ratio": "rollout_is_ratio_fraction_high",
    "tis_seq_clip_high_ratio": "rollout_is_ratio_fraction_high",
    "geo_sequence_mask_masked_ratio": "rollout_rs_seq_mean_k1_seq_masked_fraction",
    "geo_sequence_mask_over_high_ratio": "rollout_rs_seq_mean_k1_log_ratio_fraction_high",
    "geo_sequence_mask_under_low_ratio": "rollout_rs_seq_mean_k1_log_ratio_fraction_low",
    "product_sequence_mask_masked_ratio": "rollout_rs_seq_sum_k1_seq_masked_fraction",
    "product_sequence_mask_over_high_ratio": "rollout_rs_seq_sum_k1_log_ratio_fraction_high",
    "product_sequence_mask_under_low_ratio": "rollout_rs_seq_sum_k1_log_ratio_fraction_low",
    "rollout_train_logprobs_abs_diff_mean": "abs_log_ratio",
    "rollout_train_logprobs_abs_diff_std": "abs_log_ratio_std",
    "rollout_train_logprobs_abs_diff_max": "abs_log_ratio_max",
    "rollout_train_logprobs_abs_diff_min": "abs_log_ratio_min",
}
"""SkyRL's name of a metric → ours. SkyRL counts masked positions as ratio 0 in is_ratio_*; we leave them out."""
CHAINS = {"off", "token_mask_low_only", "token_mask_tis", "everything", "seq_tis_after_masks"}


def is_finite(case: str) -> bool:
    log_probs = [VERL["inputs"][case][key] for key in ("old_log_prob", "rollout_log_prob")]
    return all(math.isfinite(float(x)) for rows in log_probs for row in rows for x in row)


SKYRL_NAMES = sorted(set(GOLDEN["skyrl-main"]["configs"]) - CHAINS)


def under_skyrls_names(case: str, config: CorrectionConfig) -> dict[str, float]:
    """Return our metrics of a golden batch under SkyRL's names, as far as this configuration has them."""
    metrics = evaluate(batch(case), config)[1]
    return {name: metrics[PREFIX + key] for name, key in METRICS.items() if PREFIX + key in metrics}


COMPARABLE = [case for case in CASES if is_finite(case)]


@pytest.mark.parametrize("name", SKYRL_NAMES)
def test_skyrl_names_and_numbers(name: str) -> None:
    """Compare one rule at a time: SkyRL tests later rules only on tokens that the earlier ones keep."""
    settings = from_skyrl(GOLDEN["skyrl-main"]["configs"][name])
    for case in COMPARABLE:
        golden, given = GOLDEN["skyrl-main"]["correction"][name][case]["metrics"], batch(case)
        got = under_skyrls_names(case, settings)
        compared = set(golden) - {"is_ratio_std"}  # over all positions, padding as 0, and unbiased: tested below
        if not given.response_mask.all():
            compared -= {"is_ratio_min"}  # 0 as soon as anything is masked
        if name.startswith("outlier"):  # the side that has no bound
            compared = {key for key in compared if key in got}
        assert compared
        for key in compared:
            assert got[key] == pytest.approx(float(golden[key]), rel=5e-5, abs=5e-6, nan_ok=True), (case, key)


def test_a_nan_is_rejected_and_stays_on_its_own_side_of_the_mask() -> None:
    """Check two faults of SkyRL: a NaN on a token passes the geometric mask, one on padding makes every mean NaN."""
    golden = GOLDEN["skyrl-main"]["correction"]["geo_wide"]
    settings = from_skyrl(GOLDEN["skyrl-main"]["configs"]["geo_wide"])
    assert golden["nan_in_padding_old"]["metrics"]["is_ratio_mean"] == "nan"
    assert math.isfinite(evaluate(batch("nan_in_padding_old"), settings)[1][PREFIX + "is_ratio_mean"])
    theirs = golden["nan_in_valid"]["metrics"]["geo_sequence_mask_masked_ratio"]
    ours = evaluate(batch("nan_in_valid"), settings)[1][PREFIX + "rollout_rs_seq_mean_k1_seq_masked_fraction"]
    assert ours == theirs + 1 / len(VERL["inputs"]["nan_in_valid"]["mask"])


def test_masked_positions_are_no_ratios() -> None:
    """Check a fault of SkyRL: the smallest ratio is 0 if anything is masked, and padding increases the spread."""
    golden = GOLDEN["skyrl-main"]["correction"]["tis_token_2"]["holes_mask"]["metrics"]
    settings = CorrectionConfig(rollout_is="token")
    got = under_skyrls_names("holes_mask", settings)
    assert (golden["is_ratio_min"], golden["is_ratio_std"]) == (0, 0.5930493)
    # d = 0.4 −0.3 0.2 −0.6 | 0.1 −0.2 0.3
    ratios = [math.exp(x) for x in (0.4, -0.3, 0.2, -0.6, 0.1, -0.2, 0.3)]
    assert got["is_ratio_min"] == pytest.approx(math.exp(-0.6), rel=1e-5)
    assert got["is_ratio_std"] == pytest.approx(oracle.std(ratios), rel=1e-4)
