"""What every translation checks: a mapping, its keys, and numbers that are numbers."""

import math
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.systems.keys import known_keys, number


@pytest.mark.parametrize(("value", "expected"), [(2, 2.0), (0.5, 0.5), ("inf", math.inf), ("-inf", -math.inf)])
def test_a_number_is_a_float(value: Any, expected: float) -> None:
    assert number("upper", value) == expected
    assert isinstance(number("upper", value), float)


def test_nan_is_left_to_whoever_knows_the_bounds() -> None:
    assert math.isnan(number("upper", math.nan))


@pytest.mark.parametrize(
    ("value", "says"),
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
def test_what_is_no_number_is_named(value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        number("upper", value)


def test_keys_that_exist_may_be_left_out() -> None:
    known_keys("a rule", {"upper": 2}, ("lower", "upper"))
    known_keys("a rule", {}, iter(["lower", "upper"]))


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"uper": 2}, "unknown key of a rule 'uper'. Did you mean 'upper'"),
        (None, "a rule must be a mapping of names to values; got None"),
        ([], "a rule must be a mapping"),
    ],
)
def test_other_keys_are_refused(mapping: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        known_keys("a rule", mapping, ("lower", "upper"))
