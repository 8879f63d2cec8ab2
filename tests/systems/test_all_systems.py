"""Every preset in the format of every system: it is refused with the nearest setting, or written for a named version.

The texts of verl, SkyRL and TRL are read back, and the result is the same.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import SYSTEMS, export, exports
from rlcorr.systems.overrides import overrides
from rlcorr.systems.skyrl import from_skyrl_with_loss
from rlcorr.systems.trl import from_trl_with_loss
from rlcorr.systems.verl import from_verl_with_loss


def arguments(text: str) -> dict[str, Any]:
    """Return the arguments of the call."""
    call = ast.parse(text.replace('float("inf")', "1e999")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.value.keywords}


# System → how to parse its text, and how the library reads all of it, including the keys above the options.
BACK: dict[str, tuple[Callable[[str], Any], Callable[[Any], tuple[CorrectionConfig, LossConfig]]]] = {
    "verl": (yaml.safe_load, from_verl_with_loss),
    "SkyRL": (yaml.safe_load, from_skyrl_with_loss),
    "TRL": (arguments, from_trl_with_loss),
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


@pytest.mark.parametrize("system", BACK)
def test_a_text_is_read_back_as_it_is_pasted(system: str) -> None:
    """Read the mapping with its parents, and below each of them."""
    read, translate = BACK[system]
    told = 0
    for name, (config, loss) in CONFIGS.items():
        text = exports(config, loss)[system]
        if text.startswith("# cannot be expressed"):
            assert "nearest" in text, name
            continue
        told += 1
        for pasted in spellings(read(text)):
            back, back_loss = translate(pasted)
            assert numbers(back) == (texts(plain(config)), pytest.approx(numbers(plain(config))[1], rel=5e-5)), name
            assert back_loss.score_centering == loss.score_centering
    assert told >= 15


def spellings(pasted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the mapping, and the one below each parent."""
    yield pasted
    pasted = {name: given for name, given in pasted.items() if name not in ("actor_rollout_ref", "generator")}
    while len(pasted) == 1 and isinstance(below := next(iter(pasted.values())), dict):
        pasted = below
        yield pasted


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
@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if p.system in SYSTEMS])
def test_a_system_says_its_own_presets(name: str) -> None:
    """Their losses are set outside the correction, some formats are gone, and KPop is in no release of verl."""
    entry = PRESETS[name]
    if entry.config.loss_type not in ("dppo_tv", "dppo_kl", "vespo", "fipo") and name not in NOT_TODAY:
        assert export(entry.config, entry.system, entry.loss)


NOT_TODAY = ("prime_rl_legacy_masks", "prime_rl_dppo", "prime_rl_ipo_2026_08", "decoupled_token_kpop")


@pytest.mark.parametrize("system", [title for title in SYSTEMS if title != "Python"])
def test_every_text_and_line_names_its_version(system: str) -> None:
    for name, (config, loss) in CONFIGS.items():
        text = exports(config, loss)[system]
        if not text.startswith("# cannot be expressed"):
            named = next(line for line in text.splitlines() if line.startswith(f"# {system}"))
            assert re.search(r"\d|main|nightly", named), (name, named)
            line = overrides(config, system, loss)
            assert line is None or line.startswith(f"{named}\n"), name


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown system 'vrl'. Did you mean 'verl'"):
        export(CorrectionConfig(), "vrl")


LOSSY = [
    CorrectionConfig(loss_type="gspo"),
    CorrectionConfig(denominator="kept", rollout_is="token"),
    CorrectionConfig(rollout_is="geometric", rollout_is_mode="mask", rollout_is_batch_normalize=True),
]


@pytest.mark.parametrize("system", [title for title in SYSTEMS if title != "Python"])
@pytest.mark.parametrize("config", LOSSY, ids=["another loss", "kept", "normalised"])
def test_what_nearly_fits_is_refused(system: str, config: CorrectionConfig) -> None:
    """Check that a loss or a denominator is never dropped: gspo has another key everywhere.

    Without a rule the denominator "kept" is accepted by ROLL and xtuner, which always divide like that.
    """
    if config.denominator == "kept" and system in ("ROLL", "xtuner"):
        return
    with pytest.raises(UsageError):
        export(config, system, LossConfig())
