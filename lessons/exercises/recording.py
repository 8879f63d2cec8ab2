"""Check the exercises on the size of a recording."""

import math
from typing import Any

from rlcorr.teaching.check import Exercise

NAN = math.nan

ANSWERS_NEEDED = Exercise(
    expected=lambda std, error: math.ceil((std / error) ** 2 - 1e-9),
    cases=((0.5, 0.05), (0.5, 0.01), (1.0, 0.3), (0.034, 0.001), (3.0, 5.0)),
    mistakes=(
        (lambda std, error: math.ceil(std / error),
         "The error falls with √N, so N grows with the square."),
        (lambda std, error: int((std / error) ** 2 + 1e-9),
         "You rounded down or to the nearest number. Then the error may be larger than it should be. Round up."),
        (lambda std, error: (std / error) ** 2,
         "The number of answers is a whole number. Round up."),
        (lambda std, error: math.ceil((error / std) ** 2),
         "Upside down: a smaller error needs more answers."),
        (lambda std, error: math.ceil(std / error**2),
         "You squared only the error. Square the quotient of both."),
        (lambda std, error: math.ceil(4 * (std / error) ** 2),
         "That makes two standard errors as large as `error`. One standard error should be."),
    ),
)  # fmt: skip
"""The small number is for spreads and errors whose quotient is whole, but not quite so for a computer."""


def _directions(cosine: float, error: float, power: int = 2, spread: Any = lambda c: 1 - c * c) -> int:
    return max(math.ceil((spread(cosine) / error) ** power - 1e-9), 1)


DIRECTIONS_NEEDED = Exercise(
    expected=_directions,
    cases=((0.0, 0.1), (0.0, 0.125), (0.6, 0.08), (0.9, 0.05), (-0.6, 0.08), (0.99, 0.01)),
    mistakes=(
        (lambda cosine, error: _directions(0.0, error),
         "This is right for a cosine of 0. Near ±1 fewer directions are enough: the spread is 1 − c²."),
        (lambda cosine, error: _directions(cosine, error, spread=lambda c: math.sqrt(1 + c * c)),
         "That is for an inner product of vectors of known lengths. Here the lengths are from the sketch, too."),
        (lambda cosine, error: _directions(cosine, error, power=1),
         "The error falls with √K, so K grows with the square."),
        (lambda cosine, error: _directions(cosine, error, spread=lambda c: 1 - abs(c)),
         "The spread is 1 − c², not 1 − |c|."),
    ),
)  # fmt: skip
