"""Checks of all readers: the mapping, its keys, and its numbers."""

import math
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import number, read_keys, sort_keys


@pytest.mark.parametrize(("value", "expected"), [(2, 2.0), (0.5, 0.5), ("inf", math.inf), ("-inf", -math.inf)])
def test_a_number_is_a_float(value: Any, expected: float) -> None:
    assert number("upper", value) == expected
    assert isinstance(number("upper", value), float)


def test_nan_is_left_to_whoever_knows_the_bounds() -> None:
    assert math.isnan(number("upper", math.nan))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e-4", "upper is the text '1e-4': write the number 1.0e-4, without quotes"),
        ("1E-4", "write the number 1.0e-4"),
        ("2.0", "write the number 2.0, without quotes"),
        ("2", "write the number 2, without quotes"),
        ("two", "upper must be a number; got 'two'"),
        ("nan", "upper must be a number; got 'nan'"),
        (True, "upper must be a number; got True"),
        (None, "upper must be a number; got None"),
    ],
)
def test_what_is_no_number_is_named(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        number("upper", value)


TIS = "algorithm.rollout_correction.rollout_is"


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


@pytest.mark.parametrize("nothing", [{}, {"algorithm": None}, {"algorithm": {"rollout_correction": None}}], ids=str)
def test_an_empty_block_has_no_keys(nothing: dict[str, Any]) -> None:
    assert read_keys("verl", nothing).get(TIS) is None


def test_a_key_that_depends_on_another_counts_only_with_it() -> None:
    rollout = {"actor_rollout_ref.rollout.top_p": 0.9}
    assert sort_keys("verl", rollout).others == rollout
    assert not sort_keys("verl", rollout | {"actor_rollout_ref.rollout.topk_log_probs": 128}).others
    assert list(sort_keys("TRL", {"vespo_k_pos": 1.0, "loss_type": "dapo"}).others) == ["vespo_k_pos"]


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
