"""The parts of a diagnosis of a batch: the patterns that a mismatch can have, and how their numbers are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pattern = Literal[
    "not finite", "identical", "shift by one", "padding", "top-p mass", "temperature", "stale tensor", "clean",
    "precision", "undecided", "beyond rounding",
]  # fmt: skip
"""The patterns that a mismatch can have; `triage` says what each one means."""
HEALTHY: tuple[Pattern, ...] = ("clean", "precision")
"""The patterns of a batch in which nothing is wrong."""


@dataclass(frozen=True)
class Symptom:
    """One pattern that the batch fits. `strength`, from 0 to 1, is the share of the batch that fits, as the pattern's
    test defines it; `numbers` are those of the test, and the size of the mismatch as in `measured`."""

    pattern: Pattern
    sentence: str
    numbers: dict[str, float]
    strength: float


def short(number: float) -> str:
    """Return two digits of a number, without the zeros of Python's exponents."""
    return f"{number:.2g}" if number >= 0.001 else f"{number:.1e}".replace("e-0", "e-").replace(".0e", "e")


def percent(share: float) -> str:
    """Return a share with two digits, in percent."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def listed(names: Sequence[str]) -> str:
    """Return names in one line: "a", "a and b", or "a, b and c"."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
