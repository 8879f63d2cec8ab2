import math

import pytest

from rlcorr.analysis.digits import agreed, digits


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.0, "0"), (-0.0, "0"), (3.0, "3"), (-2.0, "−2"), (0.5, "0.5000"), (9.99996, "10.00"), (1234.56, "1235"),
     (12345.6, "1.235e+04"), (0.00012344, "0.0001234"), (0.000012344, "1.234e−05"), (-1.5e-7, "−1.500e−07"),
     (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "nan"), (20000.0, "2.000e+04")],
)  # fmt: skip
def test_four_digits(x: float, text: str) -> None:
    assert digits(x) == text


@pytest.mark.parametrize(
    ("value", "again", "text"),
    [(1.52196, 1.52204, "1.522"), (1.5219, 1.5226, "1.52"), (0.0008765, 0.001, "0.001"), (0.0003, 0.0, "0.000"),
     (0.0, 1e-9, "0.00000000"), (math.inf, 3.0, "∞"), (-0.2226, -0.222, "−0.22"), (4.2e9, 4.3e9, "4e+09")],
)  # fmt: skip
def test_digits_on_which_two_numbers_agree(value: float, again: float, text: str) -> None:
    assert agreed(value, again) == text
