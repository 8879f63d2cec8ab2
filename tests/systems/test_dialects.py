"""Systems that speak the language of another one: what they change, and what they lack."""

import math
import re
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems import miles
from rlcorr.systems.art import to_art
from rlcorr.systems.axolotl import to_axolotl
from rlcorr.systems.export import default_text, export
from rlcorr.systems.tinker import to_tinker
from rlcorr.systems.unsloth import to_unsloth

_IS = "vllm_importance_sampling"
TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=5.0, rollout_is_threshold_lower=0.5, rollout_is_mode="mask"
)
PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}


def test_unsloth_switches_trls_correction_off() -> None:
    """Check unsloth 2026.10.9, unsloth/models/rl.py:3362; TRL's default, mode sequence_mask up to 3, is on."""
    assert f"{_IS}_correction=False" in default_text("Unsloth")
    assert f"{_IS}_correction=True" in default_text("TRL")
    assert to_unsloth(CorrectionConfig())[f"{_IS}_correction"] is False
    assert f"{_IS}_correction=True" in export(TOKEN, "Unsloth")


def test_axolotl_writes_no_null() -> None:
    """Check axolotl 0.21.0, core/trainers/grpo/__init__.py:195-238: a value of None is not handed on, so TRL has 3."""
    unbounded = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    assert to_axolotl(unbounded)[f"{_IS}_clip_max"] == math.inf
    assert yaml.safe_load(export(ICEPOP, "axolotl"))["trl"] == {
        "use_vllm": True, f"{_IS}_correction": True, f"{_IS}_mode": "token_mask", f"{_IS}_clip_max": 5.0,
        f"{_IS}_clip_min": 0.5,
    }  # fmt: skip


def test_miles_has_two_other_paths() -> None:
    assert miles.to_miles(ICEPOP)["custom_tis_function_path"] == miles.ICEPOP
    rejected = CorrectionConfig(
        rollout_is="sequence", rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1),)
    )
    text = export(rejected, "miles")
    assert f"--custom-tis-function-path {miles.MIS_PATH}\n" in text
    assert "slime" not in text


def test_arts_losses() -> None:
    """Check art/loss.py of openpipe-art 0.5.23: CISPO with [0, 5], ppo with 0.2, and TIS after recomputing π_old."""
    cispo = CorrectionConfig(rollout_is="token", rollout_is_threshold=5.0, **PG)
    assert to_art(cispo) == {
        "ppo": False, "epsilon": 1.0, "epsilon_high": 4.0, "importance_sampling_level": "token",
        "mask_prob_ratio": False,
    }  # fmt: skip
    three = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0, loss_type="cispo")
    assert to_art(three, LossConfig(clip_ratio_low=1.0, clip_ratio_high=4.0)) == {
        "ppo": False, "epsilon": 1.0, "epsilon_high": 4.0, "precalculate_logprobs": True,
        "truncated_importance_sampling": 2.0,
    }  # fmt: skip
    geometric = CorrectionConfig(rollout_is="geometric", rollout_is_threshold=1.28, **PG)
    assert to_art(geometric) == to_art(cispo) | {"importance_sampling_level": "sequence", "epsilon_high": 0.28}


def test_tinkers_losses() -> None:
    """Check tinker-cookbook 0.6.1 (rl/train.py) and the documented bounds, 0.8 and 1.2."""
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, **PG)
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    bounded = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2, rollout_is_threshold_lower=0.8, **PG)
    assert to_tinker(raw) == {"loss_fn": "importance_sampling"}
    assert to_tinker(bounded) == {"loss_fn": "cispo", "loss_fn_config": bounds}
    assert to_tinker(CorrectionConfig(bypass_mode=True)) == {"loss_fn": "ppo", "loss_fn_config": bounds}


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
