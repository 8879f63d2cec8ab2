"""Parts of the diagnosis of a batch: the patterns that a mismatch can have, and how their numbers are written."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Pattern = Literal[
    "not finite", "identical", "shift by one", "padding", "top-p mass", "temperature", "stale tensor", "clean",
    "precision", "undecided", "beyond rounding", "old weights", "outlier",
]  # fmt: skip
"""The patterns that a mismatch can have. `triage` explains them."""
HEALTHY: tuple[Pattern, ...] = ("clean", "precision")
"""The patterns of a batch without a fault."""
MEND_FIRST: tuple[Pattern, ...] = (
    "not finite", "identical", "shift by one", "padding", "temperature", "beyond rounding",
)  # fmt: skip
"""The patterns of pairs that no correction can mend: the two log-probs are not of the same token, text or policy."""


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
    tokens: tuple[tuple[int, int], ...] = ()
    """Row and column of the tokens that the sentence names, both counted from 0."""
    places: Tensor | None = field(default=None, compare=False, repr=False)
    """(B, T) bool: the tokens that the sentence is about, if they are more than it names one by one. They are left out
    of the other symptoms and of the size of the gap."""


def mend_first(symptoms: Sequence[Symptom]) -> Symptom | None:
    """Return the strongest symptom of a fault that must be mended before a correction is chosen; None if there is none.

    Tokens that were left out because the engine has no log-prob for them are such a fault if they are most of the
    batch, and outliers if they are whole answers or one place of every answer.

    >>> mend_first([Symptom("precision", "", {}, 0.9)])
    >>> mend_first([Symptom("undecided", "", {}, 0.9), Symptom("padding", "", {}, 0.4)]).pattern
    'padding'
    """
    faults = [
        symptom
        for symptom in symptoms
        if symptom.pattern in MEND_FIRST or (symptom.pattern == "outlier" and symptom.places is not None)
    ]
    return next((fault for fault in faults if fault.numbers.get("left_out", 1.0) >= 0.5), None)


def short(number: float) -> str:
    """Return a number with two digits, without the zeros in Python's exponents.

    >>> short(0.00043), short(0.057), short(1467.0), short(2.3e9)
    ('4.3e-4', '0.057', '1,500', '2.3e9')
    """
    if 100 <= number < 1e6:
        return f"{float(f'{number:.2g}'):,.0f}"
    text = f"{number:.2g}" if number >= 0.001 else f"{number:.1e}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace(".0e", "e")


def percent(share: float) -> str:
    """Return a share in percent, with two digits."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def some_rows(rows: Tensor, answers: int) -> str:
    """Name rows, (N,), of a batch with so many answers: their number, and the first three.

    >>> some_rows(torch.tensor([4]), 64), some_rows(torch.tensor([0, 3, 6, 9]), 12)
    ('1 of 64 answers (response 4, counted from 0)', '4 of 12 answers (responses 0, 3, 6, …, counted from 0)')
    """
    first = ", ".join(map(str, rows[:3].tolist())) + (", …" if len(rows) > 3 else "")
    return f"{len(rows):,} of {answers:,} answers (response{'s' * (len(rows) > 1)} {first}, counted from 0)"


def listed(names: Sequence[str]) -> str:
    """Join names to one line: "a", "a and b", or "a, b and c"."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
