import math
import re
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
from rlcorr.systems.export import SYSTEMS, beyond_defaults, export, exports, to_python
from rlcorr.systems.mapping.serialize import as_yaml
from rlcorr.systems.skyrl import from_skyrl, skyrl_text
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
    content = yaml.safe_load(skyrl_text(config))
    assert from_skyrl(content["trainer"]["algorithm"]["off_policy_correction"]) == config


def test_what_a_system_cannot_do_is_said() -> None:
    texts = exports(preset("ms_swift_sequence_truncate"))
    assert texts["verl"].startswith("# cannot be expressed: verl has no geometric weights")
    assert "geometric" in texts["Python"]


def test_vespo_goes_to_trl_with_its_numbers_and_comes_back() -> None:
    """Check TRL 1.16's GRPOConfig: with token_mask without bounds the product has the raw π_old/π_rollout."""
    config, loss = CorrectionConfig(bypass_mode=True, loss_type="vespo"), LossConfig(vespo_lambda_neg=1.5)
    fields = trl.to_trl(config, loss)
    assert (fields["vespo_k_pos"], fields["vespo_lambda_neg"]) == (2.0, 1.5)
    assert trl.from_trl(fields) == config
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
    given = SYSTEMS[system].read({})
    config, loss = given if isinstance(given, tuple) else (given, None)
    assert beyond_defaults(config, system, loss)[1] == []


SAYABLE = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)


def test_a_rollout_kl_loss_that_a_text_lacks_is_named_in_it() -> None:
    """Check that prime-rl 2026-08 has the term as kl_tau, half the coefficient of k2; other texts say it is missing."""
    loss = PRESETS["prime_rl_ipo_2026_08"].loss
    assert "kl_tau = 0.001" in export(PRESETS["prime_rl_ipo_2026_08"].config, "prime-rl", loss, version="2026-08")
    for system in set(SYSTEMS) - {"prime-rl"}:
        plain = CorrectionConfig(bypass_mode=True) if system in ("torchtitan", "Tinker") else SAYABLE
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
