"""Checks of all translators: the mapping, its keys, and its numbers."""

import math
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import known_keys, number, options


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


def test_keys_that_exist_may_be_left_out() -> None:
    known_keys("a rule", {"upper": 2}, ("lower", "upper"))
    known_keys("a rule", {}, iter(["lower", "upper"]))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"uper": 2}, "unknown key of a rule 'uper'. Did you mean 'upper'"),
        (None, "a rule must be a mapping of names to values; got None"),
        ([], "a rule must be a mapping"),
    ],
)
def test_other_keys_are_refused(mapping: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        known_keys("a rule", mapping, ("lower", "upper"))


def test_options_are_found_below_the_places_of_a_file_and_as_they_are_typed() -> None:
    place = ("trainer", "loss")
    for given in (
        {"trainer": {"loss": {"kl_tau": 0.5}}},
        {"loss": {"kl_tau": 0.5}},
        {"kl_tau": 0.5},
        {"trainer.loss.kl_tau": 0.5},
        {"+trainer.loss": {"kl_tau": 0.5}},
        {"--trainer.loss.kl-tau": 0.5},
    ):
        assert options("a loss", given, place) == {"kl_tau": 0.5}, given
    for nothing in ({}, {"trainer": None}, {"trainer": {"loss": None}}, {"trainer": {}}):
        assert options("a loss", nothing, place) == {}, nothing
    assert options("a loss", [1], place) == [1]
    assert options("a loss", {"trainer": 3}, place) == 3


def test_what_was_given_is_not_changed() -> None:
    given = {"trainer": {"loss": {}}, "trainer.loss.kl_tau": 0.5}
    assert options("a loss", given, ("trainer", "loss")) == {"kl_tau": 0.5}
    assert given == {"trainer": {"loss": {}}, "trainer.loss.kl_tau": 0.5}


def test_pasted_keys_that_would_be_lost_are_refused() -> None:
    for given, message in (
        ({"trainer": {"loss": {}, "lr": 1.0}}, "a loss is read from trainer.loss, and 'lr' next to loss is not"),
        (
            {"trainer": {"kl_tau": 1.0}},
            "read from trainer.loss, and 'kl_tau' next to loss is not: leave it out, or move",
        ),
        ({"loss": {}, "lr": 1.0}, "'lr' next to loss is not"),
        ({"kl_tau": 1.0, "--kl-tau": 2.0}, "'--kl-tau' is given twice, in two spellings"),
        ({"loss": 1.0, "loss.kl_tau": 2.0}, "loss has a value and options below it: 'loss.kl_tau'"),
        ({"trainer": {"loss": {"tau": 1.0}}}, "tau is not read: it is now kl_tau."),
    ):
        with pytest.raises(UsageError, match=message):
            options("a loss", given, ("trainer", "loss"), {"tau": "it is now kl_tau"})
