"""Printed texts are compared as what they say: words and integers exactly, decimals to one unit of the last digit."""

import importlib
import operator
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import nbformat
import pytest

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
COMPARED = ("text/plain", "text/markdown", "text/html")


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


def outputs() -> list[tuple[str, str]]:
    """The name of the notebook and the text of everything that nbval compares."""
    texts = []
    for path in sorted(LESSONS.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                if output.output_type == "stream":
                    texts.append((path.name, output.text))
                else:
                    texts += [(path.name, output.data[kind]) for kind in COMPARED if kind in output.get("data", {})]
    return texts


def moved(number: str, steps: int) -> str:
    """The number, printed with as many digits, `steps` units of its last digit further on."""
    exact = Decimal(number.replace(",", "").replace("−", "-"))
    exponent = exact.as_tuple().exponent
    assert isinstance(exponent, int)
    return str(exact + steps * Decimal(1).scaleb(exponent))


def test_every_committed_output_may_differ_by_one_unit_of_any_decimal_and_by_nothing_else(printed: Any) -> None:
    """Every decimal in turn is moved by one unit and by two, every integer by one."""
    decimals = integers = 0
    for notebook, text in outputs():
        for line in text.splitlines():
            for match in printed.NUMBER.finditer(line):
                number = match.group()
                whole = number.lstrip("+-−").replace(",", "").isdigit()
                for steps in (1, -2):
                    changed = line[: match.start()] + moved(number, steps) + line[match.end() :]
                    stays = not whole and abs(steps) == 1
                    assert (printed.Printed(line) == changed) == stays, (notebook, line, number, steps)
                decimals, integers = decimals + (not whole), integers + whole
    assert min(decimals, integers) > 500
