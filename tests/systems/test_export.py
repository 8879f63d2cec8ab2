import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

import rlcorr
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.systems import trl
from rlcorr.systems.export import SYSTEMS, beyond_defaults, default_text, export, exports, to_python
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.serialize import as_yaml, short_number
from rlcorr.systems.overrides import overrides
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.systems.verl.config import from_verl, verl_text


@pytest.mark.parametrize("name", PRESETS)
def test_python_builds_the_same_configuration(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(to_python(preset(name)), scope)
    assert scope["config"] == preset(name)


def test_python_says_only_what_differs() -> None:
    config = rlcorr.preset("decoupled_k3_rs_token_tis")
    assert to_python(config) == (
        "from rlcorr import CorrectionConfig, RejectionRule\n"
        "\n"
        "config = CorrectionConfig(\n"
        "    rollout_is='token',\n"
        '    rollout_rs=(RejectionRule.named("seq_mean_k3", upper=0.01),),\n'
        ")"
    )
    assert to_python(CorrectionConfig()).endswith("config = CorrectionConfig()")


def test_yaml_is_read_back() -> None:
    config = preset("decoupled_seq_is_rs")
    content = yaml.safe_load(verl_text(config))
    assert from_verl(content["algorithm"]["rollout_correction"]) == config
    config = preset("skyrl_geo_mask")
    content = yaml.safe_load(export(config, "SkyRL"))
    assert from_skyrl(content["trainer"]["algorithm"]["off_policy_correction"]) == config


def test_verl_gets_every_key_that_the_correction_needs() -> None:
    """Check the block as it is pasted. Its bounds are on 1/r: 1/1.05 = 0.952381 and 1/0.97 = 1.030928."""
    rule = RejectionRule.named("seq_mean_k1", lower=0.97, upper=1.05)
    text = export(CorrectionConfig(rollout_rs=(rule,)), "verl")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[1] == "# verl bounds 1/r: 0.95238_1.0309 of seq_mean_k1 keeps r from 0.97 to 1.05"
    content = yaml.safe_load(text)
    assert content["actor_rollout_ref"] == {"rollout": {"calculate_log_probs": True}}
    assert content["algorithm"]["rollout_correction"]["rollout_rs_threshold"] == "0.95238_1.0309"
    (back,) = from_verl(content).rollout_rs
    assert (back.lower, back.upper) == pytest.approx((0.97, 1.05), rel=5e-5)
    content["actor_rollout_ref"]["rollout"]["calculate_log_probs"] = False
    with pytest.raises(UsageError, match="calculate_log_probs is False: verl then has no rollout_log_probs"):
        from_verl(content)


def test_verl_in_bypass_mode_sets_the_loss_that_reads_the_block() -> None:
    text = export(preset("bypass_pg_geo_rs"), "verl")
    content = yaml.safe_load(text)
    copied = {"loss_mode": "bypass_mode", "rollout_correction": "${algorithm.rollout_correction}"}
    assert content["actor_rollout_ref"]["actor"] == {"policy_loss": copied}
    assert from_verl(content).loss_type == "reinforce"
    assert "loss_mode" not in export(preset("bypass_ppo_clip"), "verl")  # PPO's clip is what verl runs anyway
    content["algorithm"]["rollout_correction"]["bypass_mode"] = False
    with pytest.raises(UsageError, match="loss_mode: bypass_mode needs bypass_mode: true"):
        from_verl(content)


def test_skyrl_records_log_probs_for_a_mask_alone() -> None:
    """Check that SkyRL, which sets logprobs itself for weights and sequence masks only, is told."""
    config = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.5, upper=2.0),))
    content = yaml.safe_load(export(config, "SkyRL"))
    assert content["generator"] == {"sampling_params": {"logprobs": 1}}
    assert from_skyrl(content) == config
    content["generator"]["sampling_params"]["logprobs"] = None
    with pytest.raises(UsageError, match="logprobs must be 1; got None"):
        from_skyrl(content)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1 / 1.05, "0.95238"), (1 / 0.97, "1.0309"), (0.999 / 0.998001998, "1.001"), (1.0000123456, "1.0000123"),
     (12345.678, "12346.0"), (1e-5 / 3, "3.3333e-06"), (2.0, "2.0"), (1e-5, "1.0e-05")],
)  # fmt: skip
def test_a_number_has_five_digits_and_keeps_its_distance_from_one(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("name", "system", "line"),
    [
        # Hydra reads an unquoted 0.5_2 as 0.52 and a,b as a sweep of two runs; the inner quotes make both a text.
        ("decoupled_token_icepop", "verl", "algorithm.rollout_correction.rollout_is=token "
         "\"algorithm.rollout_correction.rollout_is_threshold='0.5_5.0'\" "
         "actor_rollout_ref.rollout.calculate_log_probs=true"),
        ("skyrl_geo_mask", "SkyRL", "trainer.algorithm.policy_loss_type=regular "
         "trainer.algorithm.off_policy_correction.sequence_mask_metric=geometric "
         "generator.sampling_params.logprobs=1"),
        ("nemo_rl_tis", "NeMo RL", "++loss_fn.use_importance_sampling_correction=true "
         "++loss_fn.truncated_importance_sampling_type=tis ++loss_fn.truncated_importance_sampling_ratio=2.0"),
        ("areal_token_clamp", "AReaL", "++actor.use_decoupled_loss=true ++actor.rejection_sampling.level=token "
         "++actor.rejection_sampling.action=clamp ++actor.rejection_sampling.metric=ratio "
         "++actor.rejection_sampling.agg=mean ++actor.rejection_sampling.upper=5.0 "
         "++actor.rejection_sampling.lower=null"),
        ("trl_token_mask", "TRL", None),
    ],
)  # fmt: skip
def test_overrides_of_a_command_line(name: str, system: str, line: str | None) -> None:
    said = overrides(PRESETS[name].config, system, PRESETS[name].loss)
    assert (said and said.splitlines()[-1]) == line


def test_overrides_say_what_the_text_says() -> None:
    """Put each line over the system's own defaults, and compare with the text."""
    for system in [title for title, facts in FACTS.items() if facts.line is not None]:
        for name, entry in PRESETS.items():
            text = exports(entry.config, entry.loss)[system]
            if text.startswith("# cannot"):
                continue
            default = default_text(system)
            wanted, given = leaves(yaml.safe_load(text)), leaves(yaml.safe_load(default))
            line = overrides(entry.config, system, entry.loss)
            assert line is not None
            for word in shlex.split(line, comments=True):
                key, _, value = word.lstrip("+").partition("=")
                value = {"inf": ".inf"}.get(value, value)  # Hydra's own spelling
                given[key] = value.strip("'") if value.startswith("'") else yaml.safe_load(value)
            assert given == given | wanted, (system, name)


def leaves(content: Any, key: str = "") -> dict[str, Any]:
    """Return {dotted key: value}."""
    if not isinstance(content, dict):
        return {key: math.inf if content == "inf" else content}  # verl takes a number and a text
    parts = [leaves(value, f"{key}.{name}".lstrip(".")) for name, value in content.items()]
    return {name: value for part in parts for name, value in part.items()}


def test_what_a_system_cannot_do_is_said() -> None:
    texts = exports(preset("ms_swift_sequence_truncate"))
    assert texts["verl"].startswith("# cannot be expressed: verl has no geometric weights")
    assert "geometric" in texts["Python"]


def test_vespo_goes_to_trl_with_its_numbers_and_comes_back() -> None:
    """Check TRL 1.16's GRPOConfig: with token_mask without bounds the product has the raw π_old/π_rollout."""
    config, loss = CorrectionConfig(bypass_mode=True, loss_type="vespo"), LossConfig(numbers={"vespo_lambda_neg": 1.5})
    fields = trl.to_trl(config, loss)
    assert (fields["vespo_k_pos"], fields["vespo_lambda_neg"]) == (2.0, 1.5)
    assert trl.from_trl_with_loss(fields) == (config, loss)
    with pytest.raises(UsageError, match="bounded π_old/π_rollout is not known"):
        trl.from_trl({"loss_type": "vespo"})  # TRL's defaults mask the product at 3
    with pytest.raises(UsageError, match="nearest: bypass_mode=True without rollout_rs"):
        trl.to_trl(replace(config, bypass_mode=False))


@pytest.mark.parametrize(
    ("rule", "system", "message"),
    [
        ("seq_mean_binary_kl", "OpenRLHF", "in verl and here it is the larger of both"),
        ("token_abs_ratio_error", "OpenRLHF", "does not gate on |r − 1|; nearest: binary_tv"),
        (
            "seq_mean_forward_kl",
            "verl",
            "OpenRLHF calls this rule binary_kl; in verl that name means the larger of both",
        ),
    ],
)
def test_a_name_that_two_systems_give_to_different_things_says_both(rule: str, system: str, message: str) -> None:
    config = CorrectionConfig(rollout_rs=(RejectionRule.named(rule, upper=0.01),))
    with pytest.raises(UsageError, match=re.escape(message)):
        export(config, system)


@pytest.mark.parametrize(
    ("name", "system", "lines"),
    [
        # Defaults of the systems' own sources, at the versions in the texts: verl's YAML has no weights and a threshold
        # of 2, TRL has sequence_mask with 3, open-instruct truncates at 2.
        ("decoupled_token_is", "verl", ["rollout_is: token"]),
        ("decoupled_token_is", "TRL", ['mode="token_truncate"', "clip_max=2.0"]),
        ("decoupled_token_is", "open-instruct", []),
        ("trl_sequence_mask", "TRL", []),
        ("trl_token_mask", "TRL", ['mode="token_mask"']),
    ],
)
def test_lines_that_are_not_the_systems_defaults(name: str, system: str, lines: list[str]) -> None:
    entry = PRESETS[name]
    _, changed = beyond_defaults(entry.config, system, entry.loss)
    assert [line.removeprefix("vllm_importance_sampling_") for line in changed] == lines


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_systems_own_defaults_are_nothing_beyond_them(system: str) -> None:
    assert beyond_defaults(FACTS[system].correction, system, FACTS[system].loss)[1] == []


@pytest.mark.parametrize(("system", "read"), [("verl", from_verl), ("SkyRL", from_skyrl), ("TRL", trl.from_trl)])
def test_the_table_has_the_defaults_of_the_readers(system: str, read: Callable[[Any], CorrectionConfig]) -> None:
    assert read({}) == FACTS[system].correction


SAYABLE = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)


def test_a_rollout_kl_loss_that_a_text_lacks_is_named_in_it() -> None:
    loss = PRESETS["prime_rl_ipo_2026_08"].loss
    for system in SYSTEMS:
        plain = FACTS[system].correction if FACTS[system].correction.bypass_mode else SAYABLE
        named, *rest = export(plain, system, loss).splitlines()
        assert named == "# The rollout KL loss (rollout_kl_loss_coef=0.002) is not in this text.", system
        assert rest == export(plain, system, LossConfig()).splitlines(), system


def test_yaml_is_what_pyyaml_writes() -> None:
    """Texts, numbers and lists that need care come back; the text of every preset has PyYAML's form."""
    hard = {"a": {"yes": "yes", "no": "0.5_2.0", "n": "1_000", "e": 5e-6, "big": 1e22, "inf": math.inf, "none": None}}
    hard["a"] |= {"list": ["token_k1", "it's", "x: y", "", "-1.5_2.5"], "empty": [], "flag": True, "count": 3}
    assert yaml.safe_load(as_yaml("top.level", hard)) == {"top": {"level": hard}}
    texts = [as_yaml("top.level", {"rollout_rs": "token_k1", "threshold": "0.5_2.0", "scale": 5e-6, "off": None})]
    for name, entry in PRESETS.items():
        texts += [text for text in exports(entry.config, entry.loss).values() if is_yaml(text)]
        assert len(texts) > 1, name
    for text in texts:
        plain = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
        assert plain == yaml.safe_dump(yaml.safe_load(plain), sort_keys=False)


def is_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return bool(lines) and lines[0].endswith(":") and not lines[0].startswith(("[", "-"))
