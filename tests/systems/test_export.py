"""Texts of all systems: what no preset shows, the form of a text, the systems' own defaults, and the README's table.

`test_golden_texts.py` has the text or the refusal of every preset in every system.
"""

import importlib
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, preset
from rlcorr.records.runs import ROOT
from rlcorr.rules import RejectionRule
from rlcorr.systems import miles, trl
from rlcorr.systems.art import to_art
from rlcorr.systems.axolotl import to_axolotl
from rlcorr.systems.export import SYSTEMS, beyond_defaults, export, exports, shipped, to_python
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.serialize import as_yaml, short_number
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.support_replay import support_replay_text
from rlcorr.systems.tinker import to_tinker
from rlcorr.systems.unsloth import to_unsloth
from rlcorr.systems.verl.config import from_verl

_IS = "vllm_importance_sampling"
TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=5.0, rollout_is_threshold_lower=0.5, rollout_is_mode="mask"
)
PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}
RAW_PG = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf, **PG)
SEQUENCE_PG = CorrectionConfig(rollout_is="sequence", **PG)


def test_python_builds_the_same_configuration() -> None:
    for name in PRESETS:
        scope: dict[str, Any] = {}
        exec(to_python(preset(name)), scope)
        assert scope["config"] == preset(name), name


@pytest.mark.parametrize(
    ("value", "text"),
    [(1 / 1.05, "0.95238"), (1 / 0.97, "1.0309"), (0.999 / 0.998001998, "1.001"), (1.0000123456, "1.0000123"),
     (12345.678, "12346.0"), (1e-5 / 3, "3.3333e-06"), (2.0, "2.0"), (1e-5, "1.0e-05")],
)  # fmt: skip
def test_a_number_has_five_digits_and_keeps_its_distance_from_one(value: float, text: str) -> None:
    assert short_number(value) == text


def test_yaml_is_what_pyyaml_writes() -> None:
    """Texts, numbers and lists that need care come back; the text of every preset has PyYAML's form."""
    hard = {"a": {"yes": "yes", "no": "0.5_2.0", "n": "1_000", "e": 5e-6, "big": 1e22, "inf": math.inf, "none": None}}
    hard["a"] |= {"list": ["token_k1", "it's", "x: y", "", "-1.5_2.5"], "empty": [], "flag": True, "count": 3}
    assert yaml.safe_load(as_yaml("top.level", hard)) == {"top": {"level": hard}}
    texts = [as_yaml("top.level", {"rollout_rs": "token_k1", "threshold": "0.5_2.0", "scale": 5e-6, "off": None})]
    for entry in PRESETS.values():
        texts += [text for text in exports(entry.config, entry.loss).values() if is_yaml(text)]
    for text in texts:
        plain = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
        assert plain == yaml.safe_dump(yaml.safe_load(plain), sort_keys=False)


def is_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return bool(lines) and lines[0].endswith(":") and not lines[0].startswith(("[", "-"))


def test_what_the_systems_write_where_no_preset_shows_it() -> None:
    """Check art/loss.py of openpipe-art 0.5.23, tinker-cookbook 0.6.1 (rl/train.py), and axolotl 0.21.0.

    axolotl does not hand a value of None to TRL, so there "no bound" is infinity.
    """
    cispo = {"ppo": False, "epsilon": 1.0, "epsilon_high": 4.0}
    by_token = {"importance_sampling_level": "token", "mask_prob_ratio": False}
    assert to_art(replace(RAW_PG, rollout_is_threshold=5.0)) == cispo | by_token
    assert to_art(CorrectionConfig(rollout_is="geometric", rollout_is_threshold=1.28, **PG)) == cispo | {
        "importance_sampling_level": "sequence", "mask_prob_ratio": False, "epsilon_high": 0.28
    }  # fmt: skip
    clip = LossConfig(clip_ratio_low=1.0, clip_ratio_high=4.0)
    assert to_art(replace(TOKEN, loss_type="cispo"), clip) == cispo | {
        "precalculate_logprobs": True, "truncated_importance_sampling": 2.0
    }  # fmt: skip
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert to_tinker(RAW_PG) == {"loss_fn": "importance_sampling"}
    bounded = replace(RAW_PG, rollout_is_threshold=1.2, rollout_is_threshold_lower=0.8)
    assert to_tinker(bounded) == {"loss_fn": "cispo", "loss_fn_config": bounds}
    assert to_tinker(CorrectionConfig(bypass_mode=True)) == {"loss_fn": "ppo", "loss_fn_config": bounds}
    unbounded = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    assert to_axolotl(unbounded)[f"{_IS}_clip_max"] == math.inf
    assert to_unsloth(CorrectionConfig())[f"{_IS}_correction"] is False
    assert miles.to_miles(ICEPOP)["custom_tis_function_path"] == miles.ICEPOP
    rejected = CorrectionConfig(
        rollout_is="sequence", rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1),)
    )
    text = export(rejected, "miles")
    assert f"--custom-tis-function-path {miles.MIS_PATH}\n" in text
    assert "slime" not in text


def rejects(name: str, lower: float | None = None, upper: float = math.inf) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=(RejectionRule.named(name, lower=lower, upper=upper),))


UNWRITABLE: list[tuple[str, CorrectionConfig, str]] = [
    ("vrl", TOKEN, "unknown system 'vrl'. Did you mean 'verl'"),
    ("Unsloth", CorrectionConfig(rollout_is="geometric"), "UNSLOTH_GRPO_VLLM_IS_MODE.*nearest: rollout_is='sequence'"),
    ("Unsloth", CorrectionConfig(bypass_mode=True), "Unsloth's correction compares π_old with π_rollout"),
    ("axolotl", CorrectionConfig(bypass_mode=True, loss_type="vespo"), "no numbers of VESPO; nearest: loss_type"),
    ("miles", CorrectionConfig(rollout_is="token", denominator="kept"), "miles divides by all response tokens"),
    ("ART", SEQUENCE_PG, "geometric mean of a sequence; nearest: rollout_is='token'"),
    ("ART", RAW_PG, "a finite upper bound"),
    ("Tinker", TOKEN, "compare π_θ with π_rollout; nearest: bypass_mode=True"),
    ("Tinker", SEQUENCE_PG, "cispo clamps token ratios; nearest: rollout_is='token'"),
    ("OpenRLHF", rejects("seq_mean_binary_kl", upper=0.01), "in verl and here it is the larger of both"),
    ("OpenRLHF", rejects("token_abs_ratio_error", upper=0.01), r"does not gate on \|r − 1\|; nearest: binary_tv"),
    ("verl", CorrectionConfig(rollout_is="prefix"), "verl has no prefix weights; nearest: rollout_is='token'"),
    ("verl", CorrectionConfig(loss_type="dual_clip"), "loss_mode=vanilla"),
    ("verl", CorrectionConfig(loss_type="gpg", bypass_mode=True), "nearest: loss_type='reinforce'"),
    ("verl", rejects("token_k1", lower=0.5), "always has an upper bound on r; nearest: upper=1e9"),
    ("verl", rejects("token_signed_kl", -0.05, 0.05), "nearest: token_binary_kl"),
    ("SkyRL", replace(TOKEN, rollout_is_batch_normalize=True), "nearest: rollout_is_batch"),
    ("SkyRL", replace(TOKEN, rollout_is="sequence", rollout_is_mode="mask"), "'truncate' and a seq_sum_k1 rule"),
    ("SkyRL", replace(TOKEN, rollout_is_threshold_lower=0.5), "above only.*got 0.5"),
    ("SkyRL", rejects("seq_max_k1", 0.5, 2.0), "outlier veto is a lower bound on seq_min_k1"),
    ("TRL", CorrectionConfig(loss_type="vespo"), "nearest: bypass_mode=True without rollout_rs"),
]  # fmt: skip


def test_what_a_system_cannot_do_is_refused_with_the_nearest_setting() -> None:
    for system, config, message in UNWRITABLE:
        with pytest.raises(UsageError) as caught:
            export(config, system, LossConfig())
        assert re.search(message, str(caught.value)), (system, str(caught.value))
    # Without a rule the denominator "kept" is accepted by ROLL and xtuner, which always divide like that.
    kept, gspo = replace(TOKEN, denominator="kept"), CorrectionConfig(loss_type="gspo")
    for system in [title for title in SYSTEMS if title != "Python"]:
        for config in [gspo] if system in ("ROLL", "xtuner") else [gspo, kept]:
            with pytest.raises(UsageError):
                export(config, system, LossConfig())


def test_vespo_goes_to_trl_with_its_numbers_and_comes_back() -> None:
    """Check TRL 1.16's GRPOConfig: with token_mask without bounds the product has the raw π_old/π_rollout."""
    config, loss = CorrectionConfig(bypass_mode=True, loss_type="vespo"), LossConfig(numbers={"vespo_lambda_neg": 1.5})
    fields = trl.to_trl(config, loss)
    assert (fields["vespo_k_pos"], fields["vespo_lambda_neg"]) == (2.0, 1.5)
    assert trl.from_trl_with_loss(fields) == (config, loss)


def test_a_rollout_kl_loss_that_a_text_lacks_is_named_in_it() -> None:
    loss = PRESETS["prime_rl_ipo_2026_08"].loss
    for system in SYSTEMS:
        plain = FACTS[system].correction if FACTS[system].correction.bypass_mode else TOKEN
        named, *rest = export(plain, system, loss).splitlines()
        assert named == "# The rollout KL loss (rollout_kl_loss_coef=0.002) is not in this text.", system
        assert rest == export(plain, system, LossConfig()).splitlines(), system


# --- the systems' own defaults, and what they ship ---


def test_lines_that_are_not_the_systems_defaults() -> None:
    """Check the defaults of the systems' sources: verl's YAML has no weights and a threshold of 2, TRL has
    sequence_mask with 3, open-instruct truncates at 2."""
    for name, system, lines in (
        ("decoupled_token_is", "verl", ["rollout_is: token"]),
        ("decoupled_token_is", "TRL", [f'{_IS}_mode="token_truncate"', f"{_IS}_clip_max=2.0"]),
        ("decoupled_token_is", "open-instruct", []),
        ("trl_token_mask", "TRL", [f'{_IS}_mode="token_mask"']),
    ):
        assert beyond_defaults(PRESETS[name].config, system, PRESETS[name].loss)[1] == lines, (name, system)
    for system in SYSTEMS:
        assert beyond_defaults(FACTS[system].correction, system, FACTS[system].loss)[1] == [], system
    for system, read in (("verl", from_verl), ("SkyRL", from_skyrl), ("TRL", trl.from_trl)):
        assert read({}) == FACTS[system].correction


def test_a_system_ships_its_default_and_its_presets() -> None:
    """Nothing is there twice, and every preset can be exported."""
    verl = [one.preset for one in shipped("verl")]
    assert verl[:4] == ["disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop"]
    assert "bypass_pg_is" not in verl  # its weights are those of decoupled_seq_is
    assert "verl_dppo_tv" not in verl  # a loss, which the text of the correction cannot name
    assert [one.preset for one in shipped("miles")][1:] == ["slime_tis", "slime_mis", "slime_opsm"]
    for system in SYSTEMS:
        first, *others = shipped(system)
        assert (first.is_default, first.config) == (True, FACTS[system].correction), system
        assert all(export(one.config, system, one.loss) and not one.is_default for one in others), system
        effects = [replace(one.config, bypass_mode=False, loss_type="ppo_clip") for one in (first, *others)]
        assert len({repr(effect) for effect in effects}) == len(effects), system


# --- support replay ---

REPLAYS = {
    "SkyRL": "# SkyRL 0.4.0\ntrainer:\n  algorithm:\n    enable_sample_support_replay: true\ngenerator:\n"
    "  sampling_params:\n    top_p: 0.95\n    top_k: 64\n    logprobs: 1\n"
    "  inference_engine:\n    enable_return_sample_support_set: true\n",
    "TRL": "# TRL 1.17, by itself according to its release; before, every ratio is multiplied by the kept share\n"
    "GRPOConfig(\n    use_vllm=True,\n    top_p=0.95,\n    top_k=64,\n)\n",
    "prime-rl": "# prime-rl, pull request 3431: a cut is always replayed\n[orchestrator.train.sampling]\n"
    "top_p = 0.95\ntop_k = 64\n",
    "miles": "# miles, guide Sampling-Support Replay: a cut is always replayed, without a KL to the reference\n"
    "--rollout-top-p 0.95 \\\n--rollout-top-k 64 \\\n--use-miles-router\n",
}


def test_support_replay_is_the_text_of_each_systems_documentation() -> None:
    for system, text in REPLAYS.items():
        assert support_replay_text(system, top_p=0.95, top_k=64) == text
    assert support_replay_text("slime", top_p=0.9).splitlines()[-1] == "--rollout-top-p 0.9"
    assert support_replay_text("prime-rl", top_p=0.9).splitlines()[-1] == "top_k = 512"
    assert "top_k=0" in support_replay_text("TRL", top_p=0.9)
    for system, top_p, top_k, message in (
        ("verl", 0.9, -1, "verl has no replay .* nearest: top_p 1 and top_k -1, or one of SkyRL, TRL"),
        ("SkyRL", 1.0, -1, "nothing to replay"),
        ("SkyRL", 0.0, -1, "top_p must be above 0"),
        ("prime-rl", 0.9, 1000, "at most 512 tokens"),
        ("slime", 0.9, 50, "top-p only; nearest: top_k -1"),
        ("miles", 0.9, -1, "needs a positive top_k"),
    ):
        with pytest.raises(UsageError, match=message):
            support_replay_text(system, top_p=top_p, top_k=top_k)


# --- the tables of versions and of the README ---

README = (ROOT.parent / "rlcorr" / "systems" / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## From one system to another")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]


def test_the_readme_has_every_system_with_its_functions_and_its_proofs() -> None:
    assert [row[0] for row in ROWS[1:]] == [title for title in SYSTEMS if title != "Python"]
    for title, configuration, _, _, proof in ROWS[1:]:
        out, *back = re.findall(r"`(\w+)`", configuration)
        module = importlib.import_module(f"rlcorr.systems.{out.removeprefix('to_')}")
        assert all(callable(getattr(module, name)) for name in (out, *back))
        for path in re.findall(r"`(tests/[\w/]+\.py)`", proof):
            assert (ROOT.parent / path).is_file(), (title, path)
    assert f"There are {len(PRESETS)} presets" in README
    assert f"has {len(PRESETS)} presets" in (ROOT.parent / "README.md").read_text(encoding="utf-8")


def test_every_system_has_a_version_and_the_pinned_one_was_read() -> None:
    """Compare with the packages that `make peers` installs; Agent Lightning has the text of verl."""
    assert [*FACTS] == [*SYSTEMS, "Agent Lightning"]
    assert [title for title, facts in FACTS.items() if not facts.version] == ["Python"]
    for facts in FACTS.values():
        pins = ROOT.parent / "requirements" / "peers" / f"{(facts.package or '').replace('-', '_')}.txt"
        if pins.is_file():
            assert f"{facts.package}=={facts.version}" in pins.read_text(encoding="utf-8")
