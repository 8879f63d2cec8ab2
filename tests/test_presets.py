"""Our presets against verl's, as recorded from verl itself: same names, same numbers."""

from dataclasses import replace

import pytest
from reference import VERL, config

from rlcorr import PRESETS, preset
from rlcorr.errors import UsageError


def test_the_names_are_verls_nineteen() -> None:
    assert sorted(PRESETS) == sorted(VERL["presets"])
    assert len(PRESETS) == 19


@pytest.mark.parametrize("name", VERL["presets"])
def test_numbers(name: str) -> None:
    ours, theirs = preset(name), config(VERL["presets"][name])
    assert replace(ours, rollout_rs=()) == replace(theirs, rollout_rs=())
    assert [rule.name for rule in ours.rollout_rs] == [rule.name for rule in theirs.rollout_rs]


@pytest.mark.parametrize("name", VERL["presets"])
def test_bounds_are_the_numbers_that_verl_writes(name: str) -> None:
    written = VERL["presets"][name]["rollout_rs_threshold"]
    for rule in preset(name).rollout_rs:
        assert "_".join(str(x) for x in (rule.lower, rule.upper) if x is not None) == str(written)


@pytest.mark.parametrize("name", VERL["presets"])
def test_bounds_are_nearly_those_that_verl_applies(name: str) -> None:
    """verl's "0.999_1.001" keeps r in [1/1.001, 1/0.999] = [0.999001, 1.001001]: one part in a million from ours."""
    for rule, theirs in zip(preset(name).rollout_rs, config(VERL["presets"][name]).rollout_rs, strict=True):
        assert rule.upper == pytest.approx(theirs.upper, rel=2e-6)
        assert (rule.lower or 0.0) == pytest.approx(theirs.lower or 0.0, rel=2e-6)


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'decoupled_token_si'. Did you mean 'decoupled_token_is'"):
        preset("decoupled_token_si")


@pytest.mark.parametrize("name", PRESETS)
def test_provenance_is_told(name: str) -> None:
    assert "1dda039b" in PRESETS[name].source
    assert PRESETS[name].hurts
