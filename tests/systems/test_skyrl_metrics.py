"""Our metrics under SkyRL's names, against the numbers that SkyRL itself gave."""

import math

import oracle
import pytest
from reference import CASES, GOLDEN, VERL, batch

from rlcorr import CorrectionConfig, evaluate
from rlcorr.config import WeightLevel
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.systems.skyrl import from_skyrl, skyrl_metrics

CHAINS = {"off", "token_mask_low_only", "token_mask_tis", "everything", "seq_tis_after_masks"}


def is_finite(case: str) -> bool:
    log_probs = [VERL["inputs"][case][key] for key in ("old_log_prob", "rollout_log_prob")]
    return all(math.isfinite(float(x)) for rows in log_probs for row in rows for x in row)


SKYRL_NAMES = sorted(set(GOLDEN["skyrl-main"]["configs"]) - CHAINS)


COMPARABLE = [case for case in CASES if is_finite(case)]


@pytest.mark.parametrize("name", SKYRL_NAMES)
def test_skyrl_names_and_numbers(name: str) -> None:
    """One rule at a time: SkyRL looks at later rules only where earlier ones left tokens."""
    settings = from_skyrl(GOLDEN["skyrl-main"]["configs"][name])
    for case in COMPARABLE:
        golden, given = GOLDEN["skyrl-main"]["correction"][name][case]["metrics"], batch(case)
        got = skyrl_metrics(evaluate(given, settings)[1], settings)
        compared = set(golden) - {"is_ratio_std"}  # over all positions, padding as 0, and unbiased: tested below
        if not given.response_mask.all():
            compared -= {"is_ratio_min"}  # 0 as soon as anything is masked
        if name.startswith("outlier"):  # the side that has no bound
            compared = {key for key in compared if key in got}
        assert compared
        for key in compared:
            assert got[key] == pytest.approx(float(golden[key]), rel=5e-5, abs=5e-6, nan_ok=True), (case, key)


def test_a_nan_is_rejected_and_stays_on_its_own_side_of_the_mask() -> None:
    """SkyRL's faults: a NaN on a real token passes the geometric mask, one on padding spoils every mean."""
    golden = GOLDEN["skyrl-main"]["correction"]["geo_wide"]
    settings = from_skyrl(GOLDEN["skyrl-main"]["configs"]["geo_wide"])
    assert golden["nan_in_padding_old"]["metrics"]["is_ratio_mean"] == "nan"
    assert math.isfinite(evaluate(batch("nan_in_padding_old"), settings)[1][PREFIX + "is_ratio_mean"])
    theirs = golden["nan_in_valid"]["metrics"]["geo_sequence_mask_masked_ratio"]
    ours = evaluate(batch("nan_in_valid"), settings)[1][PREFIX + "rollout_rs_seq_mean_k1_seq_masked_fraction"]
    assert ours == theirs + 1 / len(VERL["inputs"]["nan_in_valid"]["mask"])


def test_masked_positions_are_no_ratios() -> None:
    """SkyRL's fault: the smallest ratio is 0 where anything is masked, and padding widens the spread."""
    golden = GOLDEN["skyrl-main"]["correction"]["tis_token_2"]["holes_mask"]["metrics"]
    settings = CorrectionConfig(rollout_is="token")
    got = skyrl_metrics(evaluate(batch("holes_mask"), settings)[1], settings)
    assert (golden["is_ratio_min"], golden["is_ratio_std"]) == (0, 0.5930493)
    # d = 0.4 −0.3 0.2 −0.6 | 0.1 −0.2 0.3
    ratios = [math.exp(x) for x in (0.4, -0.3, 0.2, -0.6, 0.1, -0.2, 0.3)]
    assert got["is_ratio_min"] == pytest.approx(math.exp(-0.6), rel=1e-5)
    assert got["is_ratio_std"] == pytest.approx(oracle.std(ratios), rel=1e-4)


@pytest.mark.parametrize(("level", "name"), [("token", "tis_token"), ("sequence", "tis_seq"), (None, None)])
def test_skyrl_names_the_clipped_share_after_its_level(level: WeightLevel | None, name: str | None) -> None:
    settings, given = CorrectionConfig(rollout_is=level), batch("holes_mask")
    got = skyrl_metrics(evaluate(given, settings)[1], settings)
    assert [key for key in got if key.startswith("tis")] == ([f"{name}_clip_high_ratio"] if name else [])
