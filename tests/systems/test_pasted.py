"""The door for configurations: texts of every form become the correction, wrong ones get one sentence."""

import math
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import exports
from rlcorr.systems.overrides import overrides
from rlcorr.systems.pasted import read_pasted

TOKEN = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
ICEPOP = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=5.0, rollout_is_threshold_lower=0.5, rollout_is_mode="mask"
)
GEOMETRIC = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1),))
BLOCK, PATH = "algorithm.rollout_correction", "trainer.algorithm.off_policy_correction"
IS = "vllm_importance_sampling"

# System → (form, text, correction, ignored keys). The corrections are typed from the systems' documentation.
RIGHT: dict[str, list[tuple[str, str, CorrectionConfig, tuple[str, ...]]]] = {
    "verl": [
        ("YAML", "# a comment\nalgorithm:\n  gamma: 1.0\n  rollout_correction:\n    rollout_is: token\n"
         "    rollout_is_threshold: 0.5_5.0\ntrainer:\n  lr: 1e-6\n", ICEPOP, ("algorithm.gamma", "trainer.lr")),
        ("YAML below its parents", "rollout_is: token\nrollout_is_threshold: 2e0", TOKEN, ()),
        ("JSON", '{"algorithm": {"rollout_correction": {"rollout_is": "token", "rollout_rs": null}}}', TOKEN, ()),
        ("a dictionary", "{'rollout_is': 'token', 'rollout_rs': None, 'bypass_mode': False}", TOKEN, ()),
        ("a call", "config = RolloutCorrectionConfig(rollout_is='token', rollout_is_threshold=2.0)", TOKEN, ()),
        ("lines", 'rollout_is = "token"\nrollout_is_threshold="0.5_5.0",', ICEPOP, ()),
        ("a command", f"python -m verl.trainer.main_ppo trainer.lr=1e-6 \\\n {BLOCK}.rollout_is=token \\\n"
         f"\"{BLOCK}.rollout_is_threshold='0.5_5.0'\" +actor_rollout_ref.rollout.calculate_log_probs=True $@",
         ICEPOP, ("trainer.lr",)),
    ],
    "SkyRL": [
        ("YAML", "trainer:\n  policy: {lr: 1.0e-6}\n  algorithm:\n    eps_clip_low: 0.2\n"
         "    policy_loss_type: regular\n    off_policy_correction:\n      tis_ratio_type: token\n", TOKEN,
         ("trainer.policy.lr", "trainer.algorithm.eps_clip_low")),
        ("JSON", '{"off_policy_correction": {"sequence_mask_metric": "geometric", "geo_mask_low": 0.9, '
         '"geo_mask_high": 1.1}}', GEOMETRIC, ()),
        ("a dictionary", "{'tis_ratio_type': 'token', 'token_tis_ratio_clip_high': 2.0}", TOKEN, ()),
        ("a call", "OffPolicyCorrectionConfig(tis_ratio_type='token')", TOKEN, ()),
        ("a command", f"uv run -m skyrl.train.entrypoint {PATH}.tis_ratio_type=token generator.n=8", TOKEN,
         ("generator.n",)),
        ("Hydra's ++", f"++{PATH}.tis_ratio_type=token ++{PATH}.token_tis_ratio_clip_high=2.0", TOKEN, ()),
    ],
    "TRL": [
        ("a call", f"from trl import GRPOConfig\n\nargs = GRPOConfig(\n    output_dir=folder,\n    use_vllm=True,\n"
         f'    {IS}_mode="token_truncate",\n    {IS}_clip_max=2.0,\n)\n', TOKEN, ("output_dir",)),
        ("flags", f"accelerate launch train.py --use_vllm --{IS}_mode token_mask --{IS}_clip_max 5.0 "
         f"--{IS}_clip_min=0.5 --learning_rate 1e-6", ICEPOP, ("learning_rate",)),
        ("YAML", f"use_vllm: true\n{IS}_mode: token_truncate\n{IS}_clip_max: 2.0\nbeta: 0.0", TOKEN, ("beta",)),
        ("JSON", f'{{"{IS}_mode": "token_truncate", "{IS}_clip_max": 2}}', TOKEN, ()),
        ("a dictionary", f"{{'{IS}_mode': 'token_truncate', '{IS}_clip_max': 2}}", TOKEN, ()),
        ("lines", f'{IS}_mode="token_mask",\n{IS}_clip_max=float("inf"),\n{IS}_clip_min=0.5,',
         replace(ICEPOP, rollout_is_threshold=math.inf), ()),
        ("in backquotes", f"```python\nGRPOConfig({IS}_mode='token_truncate', {IS}_clip_max=2.0)\n```", TOKEN, ()),
    ],
}  # fmt: skip
CASES = [(system, *case) for system, cases in RIGHT.items() for case in cases]


@pytest.mark.parametrize(("system", "form", "text", "config", "ignored"), CASES, ids=lambda x: str(x)[:24])
def test_a_text_of_this_form_is_read(
    system: str, form: str, text: str, config: CorrectionConfig, ignored: tuple[str, ...]
) -> None:
    del form
    for given in (None, system.lower()):
        pasted = read_pasted(text.replace("\n", "\r\n"), given)
        assert (pasted.system, pasted.config, pasted.ignored) == (system, config, ignored)
        assert pasted.read


# Text, and a part of the sentence that it gets.
WRONG = [
    ("", "the text has 0 characters"),
    (" " * 9 + "x" * 200_001, "the text has 200,001 characters, at most 200,000 are read"),
    ("hello world", "the text is no configuration: it has neither YAML nor JSON"),
    ("- rollout_is: token", "must be a mapping of names to values; it is list"),
    ("[1, 2", "the text is no configuration"),
    ('{"rollout_is": "token"', "neither JSON nor a Python dictionary, and as YAML it cannot be parsed in line 1"),
    ("rollout_is: token\n  rollout_rs: null", "the text cannot be parsed in line 2"),
    ("GRPOConfig(use_vllm=True", "the Python call cannot be parsed in line 1"),
    ("print('hello')", "the Python call has no keyword arguments"),
    (f"{BLOCK}.rollout_is='token", "the command line cannot be parsed: No closing quotation"),
    ("a: &x {rollout_is: token}\nb: *x", "the text has YAML aliases"),
    ("learning_rate: 1e-6", "no key of a correction is in the text; read are verl's algorithm.rollout_correction"),
    ("loss_type: grpo", "loss_type can be of verl or TRL: name the system"),
    (
        "rollout_is_treshold: 2.0",
        "unknown key of verl's rollout_correction 'rollout_is_treshold'. Did you mean 'rollou",
    ),
    (f"{BLOCK}.rollout_is=token {BLOCK}.cap=2", "unknown key of verl's rollout_correction 'cap'"),
    (f"--{IS}_clip_mx 2.0", f"Did you mean '{IS}_clip_max'"),
    (f"--use_vllm --{IS}_cap 2.0", f"{IS}_cap is not read: TRL before 1.6 had it; it is now {IS}_clip_max"),
    ("actor_rollout_ref.actor.tis_imp_ratio_cap=2.0", "tis_imp_ratio_cap is not read: an older verl capped token"),
    ("bypass_old_logprob_for_rollout: true", "bypass_old_logprob_for_rollout is not read: it is now bypass_mode."),
    ("rollout_is: tokens", "unknown rollout_is of verl 'tokens'. Did you mean 'token'"),
    ("rollout_is: token\nrollout_is_threshold: high", 'must be a number or "lower_upper"'),
    (f"GRPOConfig({IS}_clip_max=cap)", f"{IS}_clip_max is an expression, whose value is not in the text"),
    (f"{PATH}.tis_ratio_type=token trainer.algorithm.policy_loss_type=dppo", "counts the gap twice"),
    (f"{BLOCK}.rollout_is=token actor_rollout_ref.rollout.calculate_log_probs=false", "skips the correction without"),
    ("rollout_correction: token", "must be a mapping of names to values; got 'token'"),
    ("{" * 2_000, "cannot be parsed"),
    ("rollout_is: [token]", "unknown rollout_is of verl"),
    ('{"a": ' * 900 + "1" + "}" * 900, "the text"),  # nested too deeply, for the parser or for us
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=lambda text: text[:30])
def test_a_wrong_text_gets_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_pasted(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_a_wrong_system_is_named() -> None:
    with pytest.raises(UsageError, match=r"unknown system to read 'vrl'. Did you mean 'verl'"):
        read_pasted("rollout_is: token", "vrl")
    with pytest.raises(UsageError, match="no key of SkyRL's correction is in the text"):
        read_pasted("rollout_is: token", "SkyRL")


@pytest.mark.parametrize("system", RIGHT)
@pytest.mark.parametrize("name", PRESETS)
def test_the_text_of_a_preset_comes_back(system: str, name: str) -> None:
    """Paste the text, and the line for a command line; numbers have five digits."""
    preset = PRESETS[name]
    text = exports(preset.config, preset.loss)[system]
    if text.startswith("# cannot be expressed"):
        return
    texts = [text, *([overrides(preset.config, system, preset.loss) or text])]
    for given in texts:
        pasted = read_pasted(given)
        assert (pasted.system, pasted.ignored) == (system, ())
        assert numbers(pasted.config) == pytest.approx(numbers(preset.config), rel=5e-5)
        assert names(pasted.config) == names(preset.config)
        assert pasted.loss.score_centering == preset.loss.score_centering


def numbers(config: CorrectionConfig) -> list[float]:
    bounds = [bound for rule in ordered(config) for bound in (rule.lower, rule.upper)]
    weights = (config.rollout_is_threshold, config.rollout_is_threshold_lower) if config.rollout_is else ()
    return [-1.0 if bound is None else bound for bound in (*bounds, *weights)]


def names(config: CorrectionConfig) -> list[Any]:
    plain = replace(config, rollout_rs=(), rollout_is_threshold=1.0, rollout_is_threshold_lower=None)
    return [plain, *(rule.name for rule in ordered(config))]


def ordered(config: CorrectionConfig) -> list[RejectionRule]:
    return sorted(config.rollout_rs, key=lambda rule: rule.name)


def test_a_whole_configuration_is_read_and_the_rest_is_counted() -> None:
    """Paste a configuration with thousands of other keys, among them some with the last name of a key that is read."""
    rest = {f"part_{i}": {"lr": 1e-6, "loss_mode": "vanilla", "name": "x", "top_p": 0.9} for i in range(500)}
    actor = {"rollout": {"name": "sglang", "top_p": 0.9}, "actor": {"policy_loss": {"loss_mode": "vanilla"}}}
    whole = {"algorithm": {"rollout_correction": {"rollout_is": "token"}}, "actor_rollout_ref": actor, **rest}
    pasted = read_pasted(yaml.safe_dump(whole))
    assert pasted.config == TOKEN
    assert len(pasted.ignored) == 2003


def test_vespos_numbers_are_a_part_of_the_loss() -> None:
    fields = f"{IS}_mode='token_mask', {IS}_clip_max=None, {IS}_clip_min=None, vespo_k_pos=1.5"
    pasted = read_pasted(f"GRPOConfig(loss_type='vespo', {fields})")
    assert pasted.config == CorrectionConfig(bypass_mode=True, loss_type="vespo")
    assert pasted.loss == LossConfig(numbers={"vespo_k_pos": 1.5})
