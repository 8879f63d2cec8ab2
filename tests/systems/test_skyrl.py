"""SkyRL's configurations: our results against those of SkyRL itself."""

import math
from typing import Any

import pytest
import torch
from reference import GOLDEN, assert_same_weights, batch, row, rule, tensor, with_rules

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import preset
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


def test_skyrl_token_mask_before_the_sequence_mask_in_numbers() -> None:
    """Check a row with ratios 5 and 1. SkyRL's token mask drops 5, and the remaining product is 1, inside [0.5, 2]; our
    product is 5, and we reject the row."""
    config = from_skyrl(SKYRL["configs"]["seq_tis_after_masks"])
    assert correct(row(5.0, 1.0), config).keep_mask.tolist() == [[False, False]]
    golden = SKYRL["correction"]["seq_tis_after_masks"]["exact_bounds"]["loss_mask"]
    assert (sum(map(sum, golden)), int(correct(batch("exact_bounds"), config).keep_mask.sum())) == (7, 4)


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


@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        ("default", {}),
        ("tis_token_logprobs_none", {"tis_ratio_type": "token"}),
        ("token_mask_logprobs_none", {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}),
        ("outlier_logprobs_none", {"outlier_token_is_threshold_low": 1e-4}),
        ("deprecated_use_tis", {"use_tis": True, "tis_imp_ratio_cap": 2.5}),
    ],
)
def test_skyrl_accepts(name: str, mapping: dict[str, Any]) -> None:
    assert VALIDATED[name]["ok"]
    config = from_skyrl(mapping)
    assert config.rollout_is == VALIDATED[name]["tis_ratio_type"]
    assert config.rollout_is_threshold == VALIDATED[name]["token_tis_ratio_clip_high"]


@pytest.mark.parametrize(
    ("name", "mapping", "message"),
    [
        ("bad_tis", {"tis_ratio_type": "tokens"}, "unknown tis_ratio_type 'tokens'. Did you mean 'token'"),
        ("bad_seqmask", {"sequence_mask_metric": "mean"}, "unknown sequence_mask_metric 'mean'.*geometric, product"),
    ],
)
def test_skyrl_refuses_too(name: str, mapping: dict[str, Any], message: str) -> None:
    assert VALIDATED[name]["error"] == "AssertionError"
    with pytest.raises(UsageError, match=message):
        from_skyrl(mapping)


def test_skyrl_turns_the_gradient_around_with_its_default_cap() -> None:
    """Check use_tis without a cap: SkyRL accepts it, and min(ρ, −1) = −1 is then the weight of every token."""
    assert VALIDATED["deprecated_use_tis_default_cap"]["ok"]
    assert VALIDATED["deprecated_use_tis_default_cap"]["token_tis_ratio_clip_high"] == -1.0
    with pytest.raises(UsageError, match=r"tis_imp_ratio_cap must be > 0; got -1\. .*reverses the gradient"):
        from_skyrl({"use_tis": True})


def test_a_cap_below_1_is_a_cap() -> None:
    assert from_skyrl({"tis_ratio_type": "token", "token_tis_ratio_clip_high": 0.5}).rollout_is_threshold == 0.5


def test_skyrl_accepts_crossed_bounds() -> None:
    assert VALIDATED["geo_low_gt_high"]["ok"]
    with pytest.raises(UsageError, match=r"lower bound 1.1 is above upper bound 1.01"):
        from_skyrl({"sequence_mask_metric": "geometric", "geo_mask_low": 1.1})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"tis_ratio_typ": "token"}, "Did you mean 'tis_ratio_type'"),
        ({"use_tis": True, "tis_ratio_type": "sequence"}, "use_tis overrides tis_ratio_type='sequence'"),
        ({"use_tis": "yes"}, "use_tis must be True or False; got 'yes'"),
        ({"tis_ratio_type": "token", "token_tis_ratio_clip_high": 0}, "token_tis_ratio_clip_high must be > 0; got 0"),
        ({"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": None}, "must be a number; got None"),
        ({"outlier_token_is_threshold_low": "1e-4"}, "write the number 1.0e-4"),
        ({"outlier_token_is_threshold_high": True}, "must be a number; got True"),
        ("tis_ratio_type: token", "must be a mapping"),
    ],
)  # fmt: skip
def test_skyrl_mistakes_are_named(mapping: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_skyrl(mapping)


@pytest.mark.parametrize("name", sorted(set(SKYRL["configs"]) - REFUSED))
def test_skyrl_there_and_back(name: str) -> None:
    given = SKYRL["configs"][name]
    assert to_skyrl(from_skyrl(given)) == SKYRL["off_policy_defaults"] | given


def test_one_sided_bounds_for_skyrl() -> None:
    """Check that bounds of 0 and infinity are no bounds: every ratio is between them."""
    written = to_skyrl(with_rules(rule("token_k1", lower=0.5), rule("seq_sum_k1", upper=2.0)))
    assert (written["token_mask_is_threshold_low"], written["token_mask_is_threshold_high"]) == (0.5, math.inf)
    assert (written["sequence_mask_metric"], written["product_mask_low"], written["product_mask_high"]) == (
        "product",
        0,
        2,
    )
    assert from_skyrl(written) == with_rules(rule("token_k1", lower=0.5), rule("seq_sum_k1", upper=2.0))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (preset("skyrl_dppo_tv"), "policy_loss_type: dppo, with dppo.dppo_type: binary_tv"),
        (preset("skyrl_dppo_kl"), "policy_loss_type: dppo, with dppo.dppo_type: binary_kl"),
        (CorrectionConfig(bypass_mode=True), "no bypass mode; nearest: policy_loss_type rollout_is or dppo"),
        (CorrectionConfig(loss_type="gspo"), "'gspo' would be lost.*policy_loss_type"),
        (CorrectionConfig(denominator="kept"), "nearest: denominator='fixed'"),
        (CorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True), "nearest: rollout_is_batch"),
        (CorrectionConfig(rollout_is="geometric"), "no geometric weights"),
        (CorrectionConfig(rollout_is="token", rollout_is_mode="mask"), "'truncate' and a token_k1 rule"),
        (CorrectionConfig(rollout_is="sequence", rollout_is_mode="mask"), "'truncate' and a seq_sum_k1 rule"),
        (CorrectionConfig(rollout_is="token", rollout_is_threshold_lower=0.5), "above only.*got 0.5"),
        (with_rules(rule("seq_min_k1", 0.5, 2.0)), "outlier veto is a lower bound on seq_min_k1"),
        (with_rules(rule("seq_max_k1", 0.5, 2.0)), "outlier veto is a lower bound on seq_min_k1"),
        (with_rules(rule("seq_sum_k1", 0.5, 2.0), rule("seq_mean_k1", 0.9, 1.1)), "one sequence mask"),
        (with_rules(rule("token_k2", upper=2.0)), "no token_k2; nearest: token_k1"),
        (with_rules(rule("seq_mean_k3", upper=2.0)), "no seq_mean_k3; nearest: seq_mean_k1"),
        (with_rules(rule("token_k1_negative", upper=2.0)), "no token_k1_negative; nearest: token_k1"),
    ],
)  # fmt: skip
def test_what_skyrl_cannot_do_is_refused(config: CorrectionConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        to_skyrl(config)
