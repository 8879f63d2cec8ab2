"""Parts of the diagnosis of a batch: the patterns that a mismatch can have, and how their numbers are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pattern = Literal[
    "not finite", "identical", "shift by one", "padding", "top-p mass", "temperature", "stale tensor", "clean",
    "precision", "undecided", "beyond rounding", "old weights",
]  # fmt: skip
"""The patterns that a mismatch can have. `triage` explains them."""
HEALTHY: tuple[Pattern, ...] = ("clean", "precision")
"""The patterns of a batch without a fault."""


@dataclass(frozen=True)
class Symptom:
    """One pattern that the batch fits.

    `strength`, from 0 to 1, is the share of the batch that fits, as the test of the pattern defines it. `numbers` are
    those of the test, and the size of the mismatch as in `mismatch_numbers`.
    """

    pattern: Pattern
    sentence: str
    numbers: dict[str, float]
    strength: float


def short(number: float) -> str:
    """Return a number with two digits, without the zeros in Python's exponents."""
    return f"{number:.2g}" if number >= 0.001 else f"{number:.1e}".replace("e-0", "e-").replace(".0e", "e")


def percent(share: float) -> str:
    """Return a share in percent, with two digits."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def listed(names: Sequence[str]) -> str:
    """Join names to one line: "a", "a and b", or "a, b and c"."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
