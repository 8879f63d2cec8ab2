"""Every preset in the language of every system: refused with the nearest, or said so that it is read back the same."""

import ast
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems import (
    areal,
    ms_swift,
    nemo_rl,
    open_instruct,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime,
    torchtitan,
    trl,
    verl,
    xtuner,
)
from rlcorr.systems.export import SYSTEMS, export, exports

Read = Callable[[str], Any]


def under(*places: str) -> Read:
    """What YAML holds at this place."""

    def read(text: str) -> Any:
        content = yaml.safe_load(text)
        for place in places:
            content = content[place]
        return content

    return read


def flags(text: str, prefix: str = "--") -> dict[str, Any]:
    """Words of a command line as numbers, pairs and names; a flag alone is True."""
    written: dict[str, list[str]] = {}
    for word in shlex.split(text.replace("\\\n", " "), comments=True):
        if word.startswith(prefix):
            written[word.removeprefix(prefix).replace("-", "_")] = []
        else:
            written[list(written)[-1]].append(word)
    return {name: tuple(map(value, words)) if len(words) > 1 else value(*words) for name, words in written.items()}


def value(word: str = "true") -> Any:
    if word in ("true", "false"):
        return word == "true"
    try:
        return float(word)
    except ValueError:
        return word


def arguments(text: str) -> dict[str, Any]:
    """The arguments of the call."""
    call = ast.parse(text.replace('float("inf")', "1e999")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.value.keywords}


def of_slime(text: str) -> Any:
    return yaml.safe_load(text) if "mis.yaml" in text.splitlines()[0] else flags(text)


def of_openrlhf(text: str) -> Any:
    return flags(text, "--algo.advantage.")


# How a text is read as its system reads it, and what the library makes of that: (config, loss).
BACK: dict[str, tuple[Read, Callable[..., Any]]] = {
    "verl": (under("algorithm", "rollout_correction"), verl.from_verl),
    "SkyRL": (under("trainer", "algorithm", "off_policy_correction"), skyrl.from_skyrl),
    "TRL": (arguments, trl.from_trl),
    "OpenRLHF": (of_openrlhf, openrlhf.from_openrlhf),
    "prime-rl": (lambda text: tomllib.loads(text)["trainer"]["loss"], prime_rl.from_prime_rl),
    "AReaL": (under("actor"), areal.from_areal),
    "slime": (of_slime, slime.from_slime),
    "NeMo RL": (under(), nemo_rl.from_nemo_rl),
    "ROLL": (under("train_infer_correction"), roll.from_roll),
    "open-instruct": (flags, open_instruct.from_open_instruct),
    "ms-swift": (flags, ms_swift.from_ms_swift),
    "xtuner": (arguments, xtuner.from_xtuner),
    "torchtitan": (arguments, torchtitan.from_torchtitan),
}


def test_every_system_is_read_back_here() -> None:
    assert [*BACK, "Python"] == list(SYSTEMS)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("system", BACK)
def test_there_and_back(system: str, name: str) -> None:
    config, loss = PRESETS[name].config, PRESETS[name].loss
    text = exports(config, loss)[system]
    if text.startswith("# cannot be expressed"):
        assert "nearest" in text
        return
    version = text.splitlines()[0].split()[-1]
    read, translate = BACK[system]
    back = translate(read(text), **({"version": version} if version in SYSTEMS[system].versions else {}))
    if isinstance(back, tuple):
        assert back[1] == loss
        back = back[0]
    assert rounded(back) == rounded(plain(config))


def plain(config: CorrectionConfig) -> CorrectionConfig:
    """Without what says nothing: the bounds of weights that are not there."""
    if config.rollout_is is None:
        return replace(config, rollout_is_threshold=2.0)
    return config


def rounded(config: CorrectionConfig) -> CorrectionConfig:
    """exp(log x) is not always x."""
    rules = [
        replace(rule, upper=float(f"{rule.upper:.12g}"), lower=rule.lower and float(f"{rule.lower:.12g}"))
        for rule in config.rollout_rs
    ]
    return replace(config, rollout_rs=tuple(sorted(rules, key=lambda rule: rule.name)))


# Which presets a system can say is no accident: its own, and what is the same elsewhere.
@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if p.system in BACK and n != "verl_dppo_tv"])
def test_a_system_says_its_own_presets(name: str) -> None:
    system = PRESETS[name].system
    if name in ("verl_dppo_kl", "trl_vespo", "ms_swift_fipo", "prime_rl_legacy_masks"):  # losses there; one is gone
        return
    text = exports(PRESETS[name].config, PRESETS[name].loss)[system]
    assert not text.startswith("# cannot be expressed"), text


def test_the_newest_version_that_can_say_it_is_named() -> None:
    texts = exports(PRESETS["decoupled_token_kpop"].config)
    assert texts["verl"].startswith("# verl main\n")
    preset = PRESETS["prime_rl_dppo"]
    texts = exports(preset.config, preset.loss)
    assert texts["prime-rl"].startswith("# prime-rl 2026-08\n")


@pytest.mark.parametrize("system", [title for title in SYSTEMS if SYSTEMS[title].versions])
def test_a_version_that_nobody_has_read_is_refused(system: str) -> None:
    with pytest.raises(UsageError, match=rf"unknown version of {re.escape(system)} '99'.*Known: "):
        export(CorrectionConfig(), system, version="99")


def test_a_system_without_versions_has_none_to_choose() -> None:
    with pytest.raises(UsageError, match="AReaL is written in one version only; got '2'"):
        export(CorrectionConfig(), "AReaL", version="2")
    with pytest.raises(UsageError, match=r"unknown system 'vrl'. Did you mean 'verl'"):
        export(CorrectionConfig(), "vrl")


LOSSY = [
    CorrectionConfig(loss_type="gspo"),
    CorrectionConfig(denominator="kept", rollout_is="token"),
    CorrectionConfig(rollout_is="geometric", rollout_is_mode="mask", rollout_is_batch_normalize=True),
]


@pytest.mark.parametrize("system", BACK)
@pytest.mark.parametrize("config", LOSSY, ids=["another loss", "kept", "normalised"])
def test_what_nearly_fits_is_refused(system: str, config: CorrectionConfig) -> None:
    """gspo is a key of its own everywhere; kept without a rule is what ROLL and xtuner do anyway."""
    if config.denominator == "kept" and system in ("ROLL", "xtuner"):
        return
    with pytest.raises(UsageError):
        export(config, system, LossConfig())
