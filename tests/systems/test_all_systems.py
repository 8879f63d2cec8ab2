"""Every preset in the format of every system: it is refused with the nearest setting, or reading it back is exact."""

import ast
import math
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule
from rlcorr.systems import (
    areal,
    art,
    axolotl,
    miles,
    ms_swift,
    nemo_rl,
    open_instruct,
    openrlhf,
    prime_rl,
    rllm,
    roll,
    skyrl,
    slime,
    tinker,
    torchtitan,
    trl,
    unsloth,
    xtuner,
)
from rlcorr.systems.export import SYSTEMS, export, exports
from rlcorr.systems.overrides import overrides
from rlcorr.systems.verl import config as verl

Read = Callable[[str], Any]


def flags(text: str) -> dict[str, Any]:
    """Return {flag: value} of a command line. A value is a number, a pair or a name; a flag without a value is True."""
    written: dict[str, list[str]] = {}
    for word in shlex.split(text.replace("\\\n", " "), comments=True):
        if word.startswith("--"):
            written[word] = []
        else:
            written[list(written)[-1]].append(word)
    return {name: list(map(value, words)) if len(words) > 1 else value(*words) for name, words in written.items()}


def value(word: str = "true") -> Any:
    if word in ("true", "false"):
        return word == "true"
    try:
        return float(word)
    except ValueError:
        return word


def arguments(text: str) -> dict[str, Any]:
    """Return the arguments of the call."""
    call = ast.parse(text.replace('float("inf")', "1e999")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.value.keywords}


def of_slime(text: str) -> Any:
    return yaml.safe_load(text) if "mis.yaml" in text.splitlines()[0] else flags(text)


# System → how to parse its text, and how the library reads all of it, including the keys above the options.
BACK: dict[str, tuple[Read, Callable[..., Any]]] = {
    "verl": (yaml.safe_load, verl.from_verl_with_loss),
    "SkyRL": (yaml.safe_load, skyrl.from_skyrl),
    "TRL": (arguments, trl.from_trl),
    "OpenRLHF": (flags, openrlhf.from_openrlhf),
    "prime-rl": (tomllib.loads, prime_rl.from_prime_rl),
    "AReaL": (yaml.safe_load, areal.from_areal),
    "slime": (of_slime, slime.from_slime),
    "NeMo RL": (yaml.safe_load, nemo_rl.from_nemo_rl),
    "ROLL": (yaml.safe_load, roll.from_roll),
    "open-instruct": (flags, open_instruct.from_open_instruct),
    "ms-swift": (flags, ms_swift.from_ms_swift),
    "xtuner": (arguments, xtuner.from_xtuner),
    "torchtitan": (arguments, torchtitan.from_torchtitan),
    "Unsloth": (arguments, unsloth.from_unsloth),
    "axolotl": (yaml.safe_load, axolotl.from_axolotl),
    "miles": (of_slime, miles.from_miles),
    "rLLM": (yaml.safe_load, rllm.from_rllm),
    "ART": (arguments, art.from_art),
    "Tinker": (arguments, tinker.from_tinker),
}
RAW = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
CAPPED = replace(RAW, rollout_is_threshold=4.0)
BANDS = {name: (RejectionRule.named(name, lower=0.3, upper=3.0),) for name in ("token_k1", "seq_mean_k1", "seq_sum_k1")}
VARIED = {
    "nothing": CorrectionConfig(),
    "no bound": RAW,
    "token ≤ 1e4": replace(RAW, rollout_is_threshold=1e4),
    "sequence ≤ 1e4": replace(RAW, rollout_is="sequence", rollout_is_threshold=1e4),
    "geometric ≤ 1e4": replace(RAW, rollout_is="geometric", rollout_is_threshold=1e4),
    "prefix ≤ 1e4": replace(RAW, rollout_is="prefix", rollout_is_threshold=1e4),
    "token in 0.25 to 4": replace(CAPPED, rollout_is_threshold_lower=0.25),
    "mask of 1e-5 to 4": replace(CAPPED, rollout_is_threshold_lower=1e-5, rollout_is_mode="mask"),
    **{f"{name} beside raw weights": replace(RAW, rollout_rs=rules) for name, rules in BANDS.items()},
    **{f"{name} alone": CorrectionConfig(rollout_rs=rules) for name, rules in BANDS.items()},
    "kept": CorrectionConfig(rollout_rs=BANDS["token_k1"], denominator="kept"),
    "bypass": CorrectionConfig(bypass_mode=True),
    "icepop of the policy gradient": replace(
        CAPPED, rollout_is_threshold_lower=0.25, rollout_is_mode="mask", bypass_mode=True, loss_type="reinforce"
    ),
}
CONFIGS = {name: (config, LossConfig()) for name, config in VARIED.items()}
CONFIGS |= {name: (preset.config, preset.loss) for name, preset in PRESETS.items()}


def test_every_system_is_read_back_here() -> None:
    assert [*BACK, "Python"] == list(SYSTEMS)


@pytest.mark.parametrize("system", BACK)
def test_a_text_is_read_back_as_it_is_pasted(system: str) -> None:
    """Return the mapping with its parents, and below each of them; flags with and without their prefixes."""
    read, translate = BACK[system]
    told = 0
    for name, (config, loss) in CONFIGS.items():
        text = exports(config, loss)[system]
        if text.startswith("# cannot be expressed"):
            assert "nearest" in text, name
            continue
        told += 1
        version = text.splitlines()[0].split()[-1]
        dialect = {"version": version} if version in SYSTEMS[system].versions else {}
        for pasted in spellings(read(text) or {}):
            if loss.score_centering and system not in ("verl", "prime-rl"):  # their readers return our loss, too
                with pytest.raises(UsageError, match="score_centering belongs to the loss"):
                    translate(pasted, **dialect)
                continue
            back = translate(pasted, **dialect)
            if isinstance(back, tuple):
                assert relevant(back[1]) == relevant(loss), (name, pasted)
                back = back[0]
            assert numbers(back) == (texts(plain(config)), pytest.approx(numbers(plain(config))[1], rel=5e-5)), name
    assert told >= (2 if system == "torchtitan" else 5)


def spellings(pasted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the mapping, and the one below each parent; flags also without hyphens, and below their dotted parents."""
    yield pasted
    if any(name.startswith("--") for name in pasted):
        yield {name.removeprefix("--").replace("-", "_"): given for name, given in pasted.items()}
        yield {name.rpartition(".")[2]: given for name, given in pasted.items()}
    pasted = {name: given for name, given in pasted.items() if name not in ("actor_rollout_ref", "generator")}
    while len(pasted) == 1 and isinstance(below := next(iter(pasted.values())), dict):
        pasted = below
        yield pasted


def relevant(loss: LossConfig) -> LossConfig:
    """Return the loss without kl_loss_tokens, if it has no KL to the reference: the tokens then mean nothing."""
    return loss if loss.use_kl_loss else replace(loss, kl_loss_tokens="kept")


def plain(config: CorrectionConfig) -> CorrectionConfig:
    """Return the configuration without the bounds of weights, if it has no weights."""
    if config.rollout_is is None:
        return replace(config, rollout_is_threshold=2.0)
    return config


def texts(config: CorrectionConfig) -> list[Any]:
    """Return everything that is no bound, with the rules in the order of their names."""
    weights = replace(config, rollout_rs=(), rollout_is_threshold=1.0, rollout_is_threshold_lower=None)
    return [weights, *(rule.name for rule in ordered(config))]


def numbers(config: CorrectionConfig) -> tuple[list[Any], list[float]]:
    """Return `texts`, and the bounds: a text has five digits of them."""
    bounds = [bound for rule in ordered(config) for bound in (rule.lower, rule.upper)]
    bounds += [config.rollout_is_threshold, config.rollout_is_threshold_lower]
    return texts(config), [-1.0 if bound is None else bound for bound in bounds]


def ordered(config: CorrectionConfig) -> list[RejectionRule]:
    return sorted(config.rollout_rs, key=lambda rule: rule.name)


# Which presets a system can express: its own, and those that are the same elsewhere.
@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if p.system in BACK])
def test_a_system_says_its_own_presets(name: str) -> None:
    system = PRESETS[name].system
    # Their losses are set outside the correction; one format is gone.
    if PRESETS[name].config.loss_type in ("dppo_tv", "dppo_kl", "vespo", "fipo") or name == "prime_rl_legacy_masks":
        return
    version = NOT_IN_THE_NEWEST.get(name)
    assert export(PRESETS[name].config, system, PRESETS[name].loss, version=version)


NOT_IN_THE_NEWEST = {
    "decoupled_token_kpop": "pull request 6800", "prime_rl_dppo": "2026-08", "prime_rl_ipo_2026_08": "2026-08",
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_IN_THE_NEWEST)
def test_no_text_falls_back_to_another_version(name: str) -> None:
    """Check that a version other than the newest is written only if it is asked for, and named as the way out."""
    entry, version = PRESETS[name], NOT_IN_THE_NEWEST[name]
    with pytest.raises(UsageError, match=rf"nearest: version='{version}'"):
        export(entry.config, entry.system, entry.loss)
    assert version in export(entry.config, entry.system, entry.loss, version=version).splitlines()[0]


@pytest.mark.parametrize("system", [title for title in SYSTEMS if title != "Python"])
def test_every_text_and_line_names_its_version(system: str) -> None:
    for name, (config, loss) in CONFIGS.items():
        text = exports(config, loss)[system]
        if not text.startswith("# cannot be expressed"):
            named = next(line for line in text.splitlines() if line.startswith(f"# {system}"))
            assert re.search(r"\d|main|nightly", named), (name, named)
            line = overrides(config, system, loss)
            assert line is None or line.startswith(f"{named}\n"), name


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
    """Check that a loss or a denominator is never dropped: gspo has another key everywhere.

    Without a rule the denominator "kept" is accepted by ROLL and xtuner, which always divide like that.
    """
    if config.denominator == "kept" and system in ("ROLL", "xtuner"):
        return
    with pytest.raises(UsageError):
        export(config, system, LossConfig())
