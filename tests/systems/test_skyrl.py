"""SkyRL's configurations: our results against those of SkyRL itself."""

import math
from typing import Any

import oracle
import pytest
import torch
from reference import CASES, GOLDEN, VERL, assert_same_weights, batch, rule, tensor, with_rules

from rlcorr import evaluate
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.systems.skyrl import from_skyrl, to_skyrl

SKYRL = GOLDEN["skyrl-main"]
FRACTIONAL = "fractional_mask"  # a mask that is also a weight: ours is bool
EMPTY = "zero_length_2x0"  # SkyRL raises

REFUSED = {"token_mask_low_only"}
# A token mask before a sequence statistic: SkyRL computes it over the tokens that the token mask keeps.
IN_SEQUENCE = {"everything", "seq_tis_after_masks"}
SEQUENCE_RULES = [
    "geo_default", "geo_wide", "product_default", "product_wide", "outlier", "outlier_tight", "outlier_low_only",
    "outlier_high_only",
]  # fmt: skip
# Where NaN breaks SkyRL; tested below.
BROKEN = {"nan_in_valid": set(SEQUENCE_RULES), "nan_in_padding_old": {"geo_default", "tis_seq_2", "tis_seq_5"}}
NAN = {*BROKEN, "old_neginf_valid"}


def skyrl_cases(name: str) -> dict[str, Any]:
    return {case: golden for case, golden in SKYRL["correction"][name].items() if case not in (FRACTIONAL, EMPTY)}


@pytest.mark.parametrize("name", sorted(set(SKYRL["configs"]) - REFUSED - IN_SEQUENCE))
def test_skyrl(name: str) -> None:
    config = from_skyrl(SKYRL["configs"][name])
    for case, golden in skyrl_cases(name).items():
        if name in BROKEN.get(case, ()):
            continue
        given = batch(case)
        result = correct(given, config)
        assert result.keep_mask.int().tolist() == golden["loss_mask"], case
        if golden["tis_ratio"] is None:
            assert torch.equal(result.weights, given.response_mask.to(result.weights.dtype))
        else:
            assert_same_weights(result.weights, golden["tis_ratio"], case, given.response_mask)


@pytest.mark.parametrize("name", sorted(IN_SEQUENCE))
def test_skyrl_takes_sequence_statistics_over_what_its_token_mask_left(name: str) -> None:
    """Check that two corrections, the second on the mask of the first, give SkyRL's numbers, and that one does not."""
    config = from_skyrl(SKYRL["configs"][name])
    first = [r for r in config.rollout_rs if r.name in ("seq_min_k1", "seq_max_k1", "token_k1")]
    then = [r for r in config.rollout_rs if r not in first]
    assert first
    assert then
    differ = set()
    for case, golden in skyrl_cases(name).items():
        if case in NAN:
            continue
        given = batch(case)
        left = given.replace(response_mask=correct(given, with_rules(*first)).keep_mask)
        result = correct(
            left,
            CorrectionConfig(
                rollout_is=config.rollout_is, rollout_is_threshold=config.rollout_is_threshold, rollout_rs=tuple(then)
            ),
        )
        assert result.keep_mask.int().tolist() == golden["loss_mask"], case
        assert_same_weights(result.weights, golden["tis_ratio"], case, result.keep_mask)
        if correct(given, config).keep_mask.int().tolist() != golden["loss_mask"]:
            differ.add(case)
    assert {"many_short_16x5", "exact_bounds", "zero_placeholder"} <= differ


@pytest.mark.parametrize("name", SEQUENCE_RULES)
def test_skyrl_keeps_sequences_with_nan(name: str) -> None:
    """Check a NaN: SkyRL tests whether a row is outside, and NaN is not, so it keeps the 3 tokens; we reject them."""
    case = "nan_in_valid"
    golden = torch.tensor(SKYRL["correction"][name][case]["loss_mask"]).bool()
    given = batch(case)
    assert given.old_log_probs is not None
    broken = (given.old_log_probs.isnan() & given.response_mask).any(-1)
    result = correct(given, from_skyrl(SKYRL["configs"][name]))
    assert golden[broken].sum() == 3
    assert result.keep_mask[broken].sum() == 0
    assert torch.equal(result.keep_mask[~broken], golden[~broken])


def test_skyrl_lets_nan_out_of_the_padding() -> None:
    """Check a NaN on padding. In SkyRL NaN·0 is NaN: the row's weight is NaN, and the geometric mask keeps the row."""
    case = "nan_in_padding_old"
    given = batch(case)
    for name, cap in (("tis_seq_5", 5.0), ("tis_seq_2", 2.0)):
        golden = tensor(SKYRL["correction"][name][case]["tis_ratio"])
        result = correct(given, from_skyrl(SKYRL["configs"][name]))
        assert golden.isnan().any(-1).tolist() == [True, False]
        assert result.weights[given.response_mask].isfinite().all()
        assert result.weights.max() <= cap
    golden = SKYRL["correction"]["geo_default"][case]["loss_mask"]
    result = correct(given, from_skyrl(SKYRL["configs"]["geo_default"]))
    assert (sum(map(sum, golden)), int(result.keep_mask.sum())) == (2, 0)


def test_skyrl_token_mask_with_one_bound_is_silently_off() -> None:
    golden = SKYRL["correction"]["token_mask_low_only"]["holes_mask"]
    assert golden["loss_mask"] == batch("holes_mask").response_mask.int().tolist()
    with pytest.raises(
        UsageError, match="token_mask_is_threshold_high is missing: SkyRL then leaves its token mask off"
    ):
        from_skyrl(SKYRL["configs"]["token_mask_low_only"])
    with pytest.raises(UsageError, match="token_mask_is_threshold_low is missing"):
        from_skyrl({"token_mask_is_threshold_high": 2.0})
    one_sided = from_skyrl({"token_mask_is_threshold_low": 0.0, "token_mask_is_threshold_high": 2.0})
    assert one_sided.rollout_rs == (rule("token_k1", upper=2.0),)


VALIDATED = {entry["name"]: entry for entry in SKYRL["validate_cfg"]}


def test_skyrl_accepts() -> None:
    for name, mapping in {
        "default": {},
        "tis_token_logprobs_none": {"tis_ratio_type": "token"},
        "outlier_logprobs_none": {"outlier_token_is_threshold_low": 1e-4},
        "deprecated_use_tis": {"use_tis": True, "tis_imp_ratio_cap": 2.5},
    }.items():
        assert VALIDATED[name]["ok"]
        config = from_skyrl(mapping)
        assert config.rollout_is == VALIDATED[name]["tis_ratio_type"], name
        assert config.rollout_is_threshold == VALIDATED[name]["token_tis_ratio_clip_high"], name
    assert VALIDATED["bad_tis"]["error"] == VALIDATED["bad_seqmask"]["error"] == "AssertionError"


def test_what_skyrl_takes_and_we_refuse() -> None:
    """With use_tis and no cap min(ρ, −1) = −1 is the weight of every token; crossed bounds keep nothing."""
    assert VALIDATED["deprecated_use_tis_default_cap"]["ok"]
    assert VALIDATED["deprecated_use_tis_default_cap"]["token_tis_ratio_clip_high"] == -1.0
    with pytest.raises(UsageError, match=r"tis_imp_ratio_cap must be > 0; got -1\. .*reverses the gradient"):
        from_skyrl({"use_tis": True})
    assert VALIDATED["geo_low_gt_high"]["ok"]
    with pytest.raises(UsageError, match=r"lower bound 1.1 is above upper bound 1.01"):
        from_skyrl({"sequence_mask_metric": "geometric", "geo_mask_low": 1.1})


@pytest.mark.parametrize("name", sorted(set(SKYRL["configs"]) - REFUSED))
def test_skyrl_there_and_back(name: str) -> None:
    given = SKYRL["configs"][name]
    assert to_skyrl(from_skyrl(given)) == SKYRL["off_policy_defaults"] | given


def test_one_sided_bounds_for_skyrl() -> None:
    """Check that bounds of 0 and infinity are no bounds: every ratio is between them."""
    written = to_skyrl(with_rules(rule("token_k1", lower=0.5), rule("seq_sum_k1", upper=2.0)))
    assert (written["token_mask_is_threshold_low"], written["token_mask_is_threshold_high"]) == (0.5, math.inf)
    bounds = (written["product_mask_low"], written["product_mask_high"])
    assert (written["sequence_mask_metric"], bounds) == ("product", (0, 2))
    assert from_skyrl(written) == with_rules(rule("token_k1", lower=0.5), rule("seq_sum_k1", upper=2.0))


# --- metrics ---

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


SKYRL_NAMES = sorted(set(SKYRL["configs"]) - CHAINS)


def under_skyrls_names(case: str, config: CorrectionConfig) -> dict[str, float]:
    """Return our metrics of a golden batch under SkyRL's names, as far as this configuration has them."""
    metrics = evaluate(batch(case), config)[1]
    return {name: metrics[PREFIX + key] for name, key in METRICS.items() if PREFIX + key in metrics}


COMPARABLE = [case for case in CASES if is_finite(case)]


@pytest.mark.parametrize("name", SKYRL_NAMES)
def test_skyrl_names_and_numbers(name: str) -> None:
    """Compare one rule at a time: SkyRL tests later rules only on tokens that the earlier ones keep."""
    settings = from_skyrl(SKYRL["configs"][name])
    for case in COMPARABLE:
        golden, given = SKYRL["correction"][name][case]["metrics"], batch(case)
        got = under_skyrls_names(case, settings)
        compared = set(golden) - {"is_ratio_std"}  # over all positions, padding as 0, and unbiased: tested below
        if not given.response_mask.all():
            compared -= {"is_ratio_min"}  # 0 as soon as anything is masked
        if name.startswith("outlier"):  # the side that has no bound
            compared = {key for key in compared if key in got}
        assert compared
        for key in compared:
            assert got[key] == pytest.approx(float(golden[key]), rel=5e-5, abs=5e-6, nan_ok=True), (case, key)


def test_masked_positions_are_no_ratios() -> None:
    """Check a fault of SkyRL: the smallest ratio is 0 if anything is masked, and padding increases the spread."""
    golden = SKYRL["correction"]["tis_token_2"]["holes_mask"]["metrics"]
    settings = CorrectionConfig(rollout_is="token")
    got = under_skyrls_names("holes_mask", settings)
    assert (golden["is_ratio_min"], golden["is_ratio_std"]) == (0, 0.5930493)
    # d = 0.4 −0.3 0.2 −0.6 | 0.1 −0.2 0.3
    ratios = [math.exp(x) for x in (0.4, -0.3, 0.2, -0.6, 0.1, -0.2, 0.3)]
    assert got["is_ratio_min"] == pytest.approx(math.exp(-0.6), rel=1e-5)
    assert got["is_ratio_std"] == pytest.approx(oracle.std(ratios), rel=1e-4)
