"""Printed texts are compared as what they say: words and integers exactly, decimals to one unit of the last digit."""

import importlib
import operator
import sys
from pathlib import Path
from typing import Any

import pytest

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"


@pytest.fixture(scope="module")
def printed() -> Any:
    if str(LESSONS) not in sys.path:
        sys.path.insert(0, str(LESSONS))
    return importlib.import_module("printed")


SAME = [
    ("mean=0.06901", "mean=0.069"),  # what another processor printed
    ("mean=0.069", "mean=0.06901"),
    ("1.25", "1.26"),
    ("0.9999", "1"),  # of a number printed with four digits
    ("-0.00", "0.00"),
    ("−0.01", "+0.00"),
    ("k3 is 1.2e-05.", "k3 is 1.3e-05."),
    ("1,234.5 tokens", "1,234.6 tokens"),
    ("[0.49, 1.51]", "[0.50, 1.50]"),
    ("<td>9.99</td>", "<td>10.00</td>"),
]
DIFFERENT = [
    ("1.25", "1.27"),
    ("0.06901", "0.06903"),
    ("0.07", "0.072"),  # the longer one has steps of 0.001
    ("1.2e-05", "1.2e-06"),
    ("12 tokens", "13 tokens"),
    ("1,234 tokens", "1,235 tokens"),
    ("-3", "3"),
    ("0.5 of it", "0.5 of them"),
    ("1.0", "1.0\n2.0"),
    ("1.0 2.0", "1.0"),
    ("1.0 2.0", "1.0  2.0"),
    ("yes", "no"),
    ("nan", "0.00"),
    ("inf", "1e+30"),
    ("a picture (scatter, 18)", "a picture (scatter, 19)"),
    ("e5m2", "e5m3"),
    ("#1f77b4", "#1f77b5"),
    ("verl 0.9.1", "verl 0.9.2"),
]


def test_a_flip_of_the_last_digit_says_the_same(printed: Any) -> None:
    for one, other in SAME:
        assert printed.Printed(one) == other, (one, other)
        assert not operator.ne(printed.Printed(one), other), (one, other)  # what nbval asks


def test_anything_else_is_another_text(printed: Any) -> None:
    for one, other in DIFFERENT:
        assert printed.Printed(one) != other, (one, other)
        assert not operator.eq(printed.Printed(one), other), (one, other)


# --- every committed output ---
