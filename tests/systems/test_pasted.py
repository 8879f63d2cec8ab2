"""The door for configurations: texts of every form become the correction, wrong ones get one sentence."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import exports, to_python
from rlcorr.systems.mapping.keys import number, read_keys, sort_keys
from rlcorr.systems.mapping.serialize import five_digits
from rlcorr.systems.overrides import overrides
from rlcorr.systems.pasted import read_pasted
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.trl import from_trl
from rlcorr.systems.verl.config import from_verl

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
    ('{"rollout_is": "token"', "neither JSON nor a Python dictionary, and as YAML it cannot be parsed in line 1"),
    ("rollout_is: token\n  rollout_rs: null", "the text cannot be parsed in line 2"),
    ("GRPOConfig(use_vllm=True", "the Python call cannot be parsed in line 1"),
    ("print('hello')", "the Python call has no keyword arguments"),
    (f"{BLOCK}.rollout_is='token", "the command line cannot be parsed: No closing quotation"),
    ("a: &x {rollout_is: token}\nb: *x", "the text has YAML aliases"),
    ("learning_rate: 1e-6", "no key of a correction is in the text; read are verl's algorithm.rollout_correction"),
    ("loss_type: grpo", "loss_type can be of verl or TRL: name the system"),
    ("rollout_is_treshold: 2.0", "'rollout_is_treshold'. Did you mean 'rollout_is_threshold'"),
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
    ("{" * 400, "cannot be parsed"),
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


# --- what is written is read ---

RAW = replace(TOKEN, rollout_is_threshold=math.inf)
BAND = (RejectionRule.named("token_k1", lower=0.3, upper=3.0),)
CONFIGS = {name: (preset.config, preset.loss) for name, preset in PRESETS.items()} | {
    name: (config, LossConfig())
    for name, config in {
        "no bound": RAW,
        "sequence ≤ 1e4": replace(RAW, rollout_is="sequence", rollout_is_threshold=1e4),
        "mask of 1e-5 to 4": replace(ICEPOP, rollout_is_threshold_lower=1e-5, rollout_is_threshold=4.0),
        "token in 0.25 to 2": replace(TOKEN, rollout_is_threshold_lower=0.25),
        "a band next to raw weights": replace(RAW, rollout_rs=BAND),
        "a band": CorrectionConfig(rollout_rs=BAND),
        "bypass": CorrectionConfig(bypass_mode=True),
    }.items()
}


@pytest.mark.parametrize("system", RIGHT)
def test_a_text_and_a_command_line_come_back(system: str) -> None:
    """Paste them; numbers have five digits."""
    expressed = 0
    for name, (config, loss) in CONFIGS.items():
        text = exports(config, loss)[system]
        if text.startswith("# cannot be expressed"):
            continue
        expressed += 1
        for given in (text, overrides(config, system, loss) or text):
            pasted = read_pasted(given)
            assert (pasted.system, pasted.ignored) == (system, ()), name
            assert shown(pasted.config) == shown(config), name
            assert pasted.loss.score_centering == loss.score_centering, name
    assert expressed >= 15


def shown(config: CorrectionConfig) -> str:
    """Return the correction with five digits, and with its rules in the order of their names."""
    rules = tuple(sorted(config.rollout_rs, key=lambda rule: rule.name))
    upper = config.rollout_is_threshold if config.rollout_is else 2.0
    return five_digits(to_python(replace(config, rollout_rs=rules, rollout_is_threshold=upper)))


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


# --- what the system would ignore, and what it has retired ---

LEAVE_OUT = "read: leave it out."
Case = tuple[dict[str, Any], str]
# System → its reader, refused mappings with a part of the message, and similar mappings that are accepted.
IGNORED: dict[str, tuple[Callable[..., Any], list[Case], list[dict[str, Any]]]] = {
    "verl": (
        from_verl,
        [
            ({"rollout_is_level": "token", "rollout_is": True}, "now write rollout_is: token, or sequence"),
            ({"algorithm": {"rollout_is": True, "rollout_is_mode": "mask"}}, "mask, now rollout_rs"),
            ({"rollout_is": "token", "rollout_is_threshold_lower": 0.5}, 'rollout_is_threshold: "0.5_5.0"'),
            ({"rollout_is_veto_threshold": 1e-4}, "today's has no veto, nearest: rollout_rs: seq_max_k2"),
            ({"rollout_rs": "geometric", "rollout_rs_threshold_lower": 0.9}, 'rollout_rs_threshold: "0.5_2.0"'),
            ({"actor_rollout_ref.actor.tis_imp_ratio_cap": 2.0}, "rollout_is: token with rollout_is_threshold: cap"),
            ({"bypass_old_logprob_for_rollout": True}, "it is now bypass_mode."),
            ({"use_pure_rollout_correction": True}, "bypass_mode: true with loss_type: reinforce"),
            ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5, 2.0"}, 'rollout_rs_threshold: "0.5_2.0"'),
            ({"rollout_rs": "token_k1", "rollout_rs_threshold": [0.5, 2.0]}, 'as in "0.5_2.0"; got [0.5, 2.0]'),
            ({"rollout_is": "token", "rollout_is_threshold": "0.5,5.0"}, "as in \"0.5_2.0\"; got '0.5,5.0'"),
            ({"rollout_rs_threshold": 0.01}, "verl ignores rollout_rs_threshold=0.01 without rollout_rs"),
            ({"rollout_is": None, "rollout_is_threshold": 5.0}, "verl ignores rollout_is_threshold=5.0 without"),
            ({"rollout_is_batch_normalize": True}, "nothing to normalise"),
            ({"loss_type": "reinforce"}, "needs bypass_mode=True"),
            ({"bypass_mode": True, "rollout_is": "token"}, "for its metrics only"),
            ({"rollout_is": True, "rollout_is_threshold": 2.0}, "rollout_is=True is an older verl's"),
            ({"rollout_is": "token", "rollout_is_threshold": None}, "null: verl then computes no weights"),
            ({"rollout_is": "sequnce"}, "Did you mean 'sequence'"),
            ({"rollout_rs": "seq_mean_k", "rollout_rs_threshold": 2.0}, "Did you mean 'seq_mean_k"),
            ({"rollout_rs": "token", "rollout_rs_threshold": 2.0}, "a name of verl 0.7"),
            ({"rollout_rs": "token_k1,seq_max_k2,token_k3", "rollout_rs_threshold": "2,3"}, "2 thresholds for 3 rules"),
            ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999,1.001"}, 'a pair as one text "lower_upper"'),
            ({"rollout_rs": "token_k1", "rollout_rs_threshold": "1.4_0.6"}, "0 < lower ≤ upper; got '1.4_0.6'"),
            ({"rollout_rs": "binary_kl", "rollout_rs_threshold": "0.5_2.0"}, "one upper bound"),
            ({"bypass_mode": True, "loss_type": "gspo"}, "unknown loss_type of verl's rollout correction 'gspo'"),
            ({"bypass_mode": "yes"}, "bypass_mode must be True or False; got 'yes'"),
            ({"_target_": ""}, "rollout_is is missing next to _target_"),
        ],
        [{"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}],
    ),
    "SkyRL": (
        from_skyrl,
        [
            ({"trainer": {"algorithm": {"off_policy_correction": {}, "eps_clip_low": 0.2}}}, "read: leave it out."),
            ({"token_tis_ratio_clip_high": 3.0}, "SkyRL ignores token_tis_ratio_clip_high=3.0 without tis_ratio_type"),
            ({"geo_mask_high": 1.1}, "without sequence_mask_metric: geometric"),
            ({"tis_imp_ratio_cap": 2.0}, "without the deprecated use_tis: true"),
            ({"token_mask_is_threshold_low": 0.5}, "token_mask_is_threshold_high is missing"),
            ({"tis_ratio_type": "token", "policy_loss_type": "dppo"}, "counts the gap twice"),
            ({"outlier_token_is_threshold_low": 0.1, "policy_loss_type": "clip_cov"}, "regular; got 'clip_cov'"),
            ({"tis_ratio_type": "tokens"}, "unknown tis_ratio_type 'tokens'. Did you mean 'token'"),
            ({"sequence_mask_metric": "mean"}, "unknown sequence_mask_metric 'mean'"),
            ({"use_tis": True, "tis_ratio_type": "sequence"}, "use_tis overrides tis_ratio_type='sequence'"),
            ({"use_tis": "yes"}, "use_tis must be True or False; got 'yes'"),
            (
                {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 0},
                "token_tis_ratio_clip_high must be > 0; got 0",
            ),
            ({"outlier_token_is_threshold_high": True}, "must be a number; got True"),
            ({"generator": {"sampling_params": {"logprobs": None}}}, "logprobs must be 1; got None"),
        ],
        [{"tis_ratio_type": None, "token_tis_ratio_clip_high": 2.0, "geo_mask_low": 0.99}],
    ),
    "TRL": (
        from_trl,
        [
            ({f"{IS}_cap": 2.0}, f"TRL before 1.6 had it; it is now {IS}_clip_max"),
            ({"importance_sampling_level": "sequence"}, "so leave it out"),
            ({"learning_rate": 1e-6}, "What is not about the correction is not read: leave it out."),
            ({f"{IS}_correction": False, f"{IS}_clip_max": 2.0}, f"TRL ignores {IS}_clip_max=2.0 without use_vllm"),
            ({"use_vllm": False, "off_policy_mask_threshold": 0.5}, "compares π_θ with π_old, which is no mismatch"),
            ({"vespo_k_pos": 1.0}, "What is not about the correction is not read: leave it out."),
            ({"loss_type": "cispo"}, "loss_type 'cispo' is not read"),
            ({f"{IS}_mode": "token_truncate", f"{IS}_clip_max": None}, "cannot clamp without a bound"),
            ({"loss_type": "vespo"}, "bounded π_old/π_rollout is not known"),  # TRL's defaults mask the product at 3
        ],
        [{f"{IS}_correction": False, f"{IS}_clip_max": 3.0}, {"loss_type": "dr_grpo"}],
    ),
}


def refusal(read: Callable[..., Any], given: Any) -> str:
    """Return the message of the error, or what was read if there is no error."""
    try:
        return f"read as {read(given)}"
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("system", IGNORED)
def test_what_the_system_would_ignore_or_has_retired_is_refused(system: str) -> None:
    """Check the reader, and the door with the mapping as a text; the door counts keys that are about other things."""
    read, refused, accepted = IGNORED[system]
    for given, message in refused:
        assert message in refusal(read, given), (system, given)
        if not message.endswith(LEAVE_OUT):
            assert message in refusal(lambda text: read_pasted(text, system), repr(given)), (system, given)
    for given in accepted:
        assert refusal(read, given).startswith("read as "), (system, given)


# --- keys and numbers ---

TIS = f"{BLOCK}.rollout_is"


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": {"rollout_correction": {"rollout_is": "token"}}},
        {"rollout_correction": {"rollout_is": "token"}},
        {"rollout_is": "token"},
        {TIS: "token"},
        {"++algorithm.rollout_correction": {"rollout_is": "token"}},
        {"--algorithm.rollout-correction.rollout-is": "token"},
    ],
    ids=str,
)
def test_keys_are_placed_as_in_the_systems_own_file_however_they_are_typed(given: dict[str, Any]) -> None:
    before = repr(given)
    assert read_keys("verl", given) == {TIS: "token"}
    assert repr(given) == before


def test_a_key_that_depends_on_another_counts_only_with_it() -> None:
    assert list(sort_keys("TRL", {"vespo_k_pos": 1.0, "loss_type": "dapo"}).others) == ["vespo_k_pos"]
    assert not sort_keys("TRL", {"vespo_k_pos": 1.0, "loss_type": "vespo"}).others
    assert from_verl({"algorithm": {"rollout_correction": None}}) == CorrectionConfig()


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"rollout_iss": 2}, "unknown key of verl's rollout_correction 'rollout_iss'. Did you mean 'rollout_is'"),
        ({"algorithm": {"rollout_correction": {}, "lr": 1.0}}, "'lr'.*What is not about the correction is not read"),
        (None, "verl's rollout_correction must be a mapping of names to values; got None"),
        ({"algorithm": {"rollout_correction": 3}}, "must be a mapping of names to values; got 3"),
        ({"rollout_is": "token", "--rollout-is": 2.0}, "'--rollout-is' is given twice, in two spellings"),
        ({"algorithm": 1.0, "algorithm.gamma": 2.0}, "algorithm has a value and options below it: 'algorithm.gamma'"),
        ({"a": {"tis_imp_ratio_cap": 2.0}}, "tis_imp_ratio_cap is not read: an older verl capped"),
    ],
)
def test_keys_that_would_be_lost_are_refused(mapping: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_keys("verl", mapping)


def test_a_number_is_no_text() -> None:
    assert [number("upper", value) for value in (2, 0.5, "inf", "-inf")] == [2.0, 0.5, math.inf, -math.inf]
    for value, message in (
        ("1e-4", "upper must be a number; got '1e-4', a text: write a number without quotes, with a dot before"),
        (True, "upper must be a number; got True"),
        (None, "upper must be a number; got None"),
    ):
        with pytest.raises(UsageError, match=message):
            number("upper", value)
