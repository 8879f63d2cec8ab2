"""Systems that speak the language of another one: what they change, and what they lack."""

import math
import re
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems import miles, slime
from rlcorr.systems.art import from_art, to_art
from rlcorr.systems.axolotl import axolotl_text, from_axolotl, to_axolotl
from rlcorr.systems.export import export
from rlcorr.systems.miles import from_miles, miles_text, to_miles
from rlcorr.systems.rllm import from_rllm
from rlcorr.systems.tinker import from_tinker, staleness, to_tinker
from rlcorr.systems.trl import from_trl
from rlcorr.systems.unsloth import from_unsloth, to_unsloth

_IS = "vllm_importance_sampling"
TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=5.0, rollout_is_threshold_lower=0.5, rollout_is_mode="mask"
)
PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}


def test_unsloth_switches_trls_correction_off() -> None:
    """Check unsloth 2026.10.9, unsloth/models/rl.py:3362; the other defaults are TRL's, mode sequence_mask up to 3."""
    assert from_unsloth({}) == CorrectionConfig()
    assert from_unsloth({f"{_IS}_correction": True}) == from_trl({})
    assert from_unsloth({f"{_IS}_correction": True, f"{_IS}_mode": "token_truncate", f"{_IS}_cap": 2.0}) == TOKEN
    assert to_unsloth(CorrectionConfig())[f"{_IS}_correction"] is False
    assert f"{_IS}_correction=True" in export(TOKEN, "Unsloth")


def test_axolotls_null_is_trls_default() -> None:
    """Check axolotl 0.21.0, core/trainers/grpo/__init__.py:195-238: a value of None is not handed on, so TRL has 3."""
    given = {"use_vllm": True, f"{_IS}_mode": "token_truncate", f"{_IS}_clip_max": None}
    assert from_axolotl({"trl": given}).rollout_is_threshold == 3.0
    assert from_axolotl({"trl": {}}) == CorrectionConfig()
    unbounded = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    assert to_axolotl(unbounded)[f"{_IS}_clip_max"] == math.inf
    assert yaml.safe_load(axolotl_text(ICEPOP))["trl"] == {
        "use_vllm": True, f"{_IS}_correction": True, f"{_IS}_mode": "token_mask", f"{_IS}_clip_max": 5.0,
        f"{_IS}_clip_min": 0.5,
    }  # fmt: skip


def test_axolotls_asynchronous_trainer_clamps_on_both_sides() -> None:
    """Check core/trainers/grpo/async_trainer.py:1937-1949 with its defaults: token_truncate to [1/3, 3]."""
    config = from_axolotl({"use_vllm": True, "async_prefetch": True})
    assert config == CorrectionConfig(rollout_is="token", rollout_is_threshold=3.0, rollout_is_threshold_lower=1 / 3)
    config = from_axolotl({"use_vllm": True, "use_data_producer": True, f"{_IS}_mode": "sequence_truncate"})
    assert (config.rollout_is, config.rollout_is_threshold) == ("sequence", 3.0)


def test_miles_has_two_other_paths() -> None:
    flags = to_miles(ICEPOP)
    assert flags["custom_tis_function_path"] == miles.ICEPOP
    assert from_miles(flags) == ICEPOP == slime.from_slime(slime.to_slime(ICEPOP))
    rejected = CorrectionConfig(
        rollout_is="sequence", rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1),)
    )
    text = miles_text(rejected)
    assert f"--custom-tis-function-path {miles.MIS_PATH}\n" in text
    assert "slime" not in text
    assert from_miles(yaml.safe_load(text)) == rejected


def test_miles_example_file_has_no_rejection() -> None:
    """Check score_centering_mis.yaml of miles (commit 5257b2ef) and the defaults of mis.py (commit 6cf5331c)."""
    example = {
        "use_tis": True, "use_rs": False, "tis_level": "token", "tis_mode": "mask", "tis_lower_bound": 0.5,
        "tis_upper_bound": 5.0, "tis_batch_normalize": False, "rs_lower_bound": None, "rs_upper_bound": None,
        "rs_veto_threshold": None,
    }  # fmt: skip
    band = RejectionRule.named("token_k1", lower=0.5, upper=5.0)
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, rollout_rs=(band,))
    assert from_miles(example) == raw
    assert from_miles({"tis_mode": "mask", "tis_upper_bound": 5.0}) == raw


def test_rllm_has_three_keys() -> None:
    """Check rllm/trainer/config/rllm/base.yaml (commit 06bffb24): no mode, and a cap of 2."""
    assert from_rllm({"bypass_mode": None, "tis_mode": None, "tis_cap": 2.0}) == CorrectionConfig()
    assert from_rllm({"rllm": {"algorithm": {"rollout_correction": {"tis_mode": "token"}}}}) == TOKEN
    assert from_rllm({"bypass_mode": True}) == CorrectionConfig(bypass_mode=True)


def test_arts_losses() -> None:
    """Check art/loss.py of openpipe-art 0.5.23: CISPO with [0, 5], ppo with 0.2, and TIS after recomputing π_old."""
    cispo = CorrectionConfig(rollout_is="token", rollout_is_threshold=5.0, **PG)
    assert from_art({}) == (cispo, LossConfig())
    ppo = from_art({"ppo": True})
    assert ppo == (CorrectionConfig(bypass_mode=True), LossConfig())
    three = from_art({"precalculate_logprobs": True, "truncated_importance_sampling": 2.0})
    assert three[0] == CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0, loss_type="cispo")
    assert (three[1].clip_ratio_low, three[1].clip_ratio_high) == (1.0, 4.0)
    assert from_art(to_art(*three)) == three
    # A missing epsilon_high is 4, None is epsilon.
    assert from_art({"epsilon": 1.0, "epsilon_high": None})[0].rollout_is_threshold == 2.0
    geometric = CorrectionConfig(rollout_is="geometric", rollout_is_threshold=1.28, **PG)
    assert from_art({"importance_sampling_level": "sequence", "epsilon_high": 0.28})[0] == geometric
    assert from_art(to_art(geometric))[0] == geometric


def test_tinkers_losses() -> None:
    """Check tinker-cookbook 0.6.1 (rl/train.py) and the documented bounds, 0.8 and 1.2."""
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, **PG)
    assert from_tinker({}) == (raw, LossConfig())
    bounded = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2, rollout_is_threshold_lower=0.8, **PG)
    assert from_tinker({"loss_fn": "cispo"}) == (bounded, LossConfig())
    config, loss = from_tinker({"loss_fn": "ppo"})
    assert (config, loss) == (CorrectionConfig(bypass_mode=True), LossConfig())
    assert to_tinker(config, loss)["loss_fn_config"] == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    lagged = {"async_config": {"max_steps_off_policy": 3, "groups_per_batch": 8, "loss_fn": "ppo"}}
    assert from_tinker(lagged)[0] == config
    assert (staleness(lagged), staleness({})) == (3, 0)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (from_unsloth, {f"{_IS}_clip_max": 2.0}, f"Unsloth ignores {_IS}_clip_max=2.0 without use_vllm"),
    (from_unsloth, {f"{_IS}_cap": 2.0, f"{_IS}_clip_max": 2.0}, "its old name: give one of them"),
    (from_unsloth, {f"{_IS}_correction": True, f"{_IS}_mode": "geometric_mask"}, "unknown vllm_importance"),
    (from_axolotl, {"use_vllm": True, "async_prefetch": True, f"{_IS}_mode": "token_mask"}, "so nothing is rejected"),
    (from_axolotl, {"use_vllm": True, "async_prefetch": True, f"{_IS}_clip_max": 2.0}, "with the asynchronous trainer"),
    (from_axolotl, {"async_prefetch": True, f"{_IS}_cap": 2.0}, "axolotl ignores vllm_importance_sampling_cap=2.0"),
    (from_axolotl, {"trl": {"beta": 0.1}}, "unknown key of axolotl's trl 'beta'"),
    (from_axolotl, {"async_prefetch": True, "off_policy_mask_threshold": 0.5}, "only the weights of PPO's clip"),
    (from_miles, {"tis_clip": 5.0}, "miles ignores tis_clip=5.0 without --use-tis"),
    (from_miles, {"use_tis": True, "custom_tis_function_path": slime.ICEPOP}, f"in miles it is {miles.ICEPOP}"),
    (from_miles, {"use_tis": True, "custom_tis_function_path": miles.MIS_PATH}, "give the keys of that file"),
    (from_rllm, {"tis_cap": 3.0}, "rLLM ignores tis_cap=3.0 without tis_mode"),
    (from_rllm, {"tis_mode": "token", "bypass_mode": True}, "reach verl's metrics only"),
    (from_rllm, {"tis_mode": "geometric"}, "unknown tis_mode 'geometric'"),
    (
        from_art,
        {"truncated_importance_sampling": 2.0},
        "truncated_importance_sampling=2.0 without precalculate",
    ),
    (from_art, {"mask_prob_ratio": True, "epsilon": 0.2}, "clamps the zeros of mask_prob_ratio to 1 − epsilon"),
    (from_art, {"importance_sampling_level": "average"}, "mixes token and sequence ratios"),
    (from_art, {"kimi_k2_tau": 0.1}, "it changes the advantages"),
    (from_art, {"max_negative_advantage_importance_sampling_weight": 2.0}, "a second epsilon_high"),
    (from_art, {"ppo": True, "importance_sampling_level": "sequence"}, "for CISPO without precalculate_logprobs only"),
    (from_tinker, {"loss_fn": "stable_reinforce"}, "its formula is not published"),
    (from_tinker, {"async_config": {"max_steps_off_policy": 1}}, "'stable_reinforce' is not read"),
    (from_tinker, {"loss_fn": "ppo", "async_config": {"loss_fn": "cispo"}}, "refuses loss_fn 'ppo' next to 'cispo'"),
    (from_tinker, {"loss_fn_config": {"clip_low_threshold": 0.8}}, "unknown key of loss_fn_config of importance_sampl"),
    (from_tinker, {"loss_fn": "grpo"}, "unknown loss_fn of tinker-cookbook 'grpo'"),
    (staleness, {"async_config": {"max_steps_off_policy": 1.5}}, "a whole number of at least 0; got 1.5"),
]


def test_what_a_dialect_ignores_or_lacks_is_refused() -> None:
    for read, given, message in REFUSED:
        with pytest.raises(UsageError) as caught:
            read(given)
        assert message in str(caught.value), (given, str(caught.value))


UNWRITABLE: list[tuple[str, CorrectionConfig, str]] = [
    ("Unsloth", CorrectionConfig(rollout_is="geometric"), "UNSLOTH_GRPO_VLLM_IS_MODE.*nearest: rollout_is='sequence'"),
    ("Unsloth", CorrectionConfig(bypass_mode=True), "Unsloth's correction compares π_old with π_rollout"),
    ("axolotl", CorrectionConfig(rollout_is="geometric"), "axolotl has no geometric weights"),
    ("axolotl", CorrectionConfig(bypass_mode=True, loss_type="vespo"), "no numbers of VESPO; nearest: loss_type"),
    ("miles", CorrectionConfig(rollout_is="token", denominator="kept"), "miles divides by all response tokens"),
    ("rLLM", ICEPOP, "a finite cap and are truncated at it; nearest"),
    ("rLLM", CorrectionConfig(rollout_rs=(RejectionRule.named("token_k2", upper=1.0),)), "verl's own algorithm"),
    ("ART", CorrectionConfig(rollout_is="sequence", **PG), "geometric mean of a sequence; nearest: rollout_is='token'"),
    ("ART", CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, **PG), "a finite upper bound"),
    ("ART", CorrectionConfig(loss_type="gspo"), "PPO's clip and CISPO; nearest"),
    ("ART", ICEPOP, "clamps token ratios from above; nearest: rollout_is='token'"),
    ("Tinker", TOKEN, "compare π_θ with π_rollout; nearest: bypass_mode=True"),
    ("Tinker", CorrectionConfig(rollout_is="sequence", **PG), "cispo clamps token ratios; nearest: rollout_is='token'"),
]


def test_what_a_dialect_cannot_write_is_refused() -> None:
    for system, config, message in UNWRITABLE:
        with pytest.raises(UsageError) as caught:
            export(config, system, LossConfig())
        assert re.search(message, str(caught.value)), (system, str(caught.value))
