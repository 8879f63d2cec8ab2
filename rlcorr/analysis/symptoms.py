"""What a diagnosis says: the patterns of a mismatch, the sentence of each sign, and how numbers are written."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from rlcorr.types import TokenBatch

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


@dataclass(frozen=True)
class Sign:
    """What is said about one sign of a pattern. The test that finds it fills the braces."""

    pattern: Pattern
    sentence: str
    remedy: str = ""

    def symptom(self, strength: float, numbers: dict[str, float], /, **words: Any) -> Symptom:
        """Return the symptom with these words in its sentence."""
        text = f"{self.sentence} {self.remedy}".rstrip().format(**words)
        return Symptom(self.pattern, text, numbers, strength)


SIGNS = {
    "not finite": Sign(
        "not finite", "Not finite: {count:,} of {total:,} tokens have a log-prob that is NaN or infinite."
    ),
    "left out": Sign(
        "not finite",
        "Not finite: {count:,} of {total:,} tokens have no log-prob of the engine and are left out of every number.",
    ),
    "fill value of both": Sign(
        "padding",
        "Looks like padding: both log-probs are exactly {value} on {count:,} tokens ({share}). This value marks a "
        "missing log-prob.",
        "The response_mask includes positions without a token.",
    ),
    "fill value": Sign(
        "padding",
        "Looks like padding: the {side}'s log-prob is exactly {value} on {count:,} tokens ({share}). This value marks "
        "a missing log-prob.",
        "These tokens have no ratio.",
    ),
    "constant run": Sign(
        "padding",
        "Looks like padding: both log-probs are exactly {value} on {count:,} tokens ({share}), at the beginning or end "
        "of {rows}. Without a mask such places count as tokens of ratio 1.",
        "Say which tokens are real: with a response_mask, or with lengths.",
    ),
    "unfilled": Sign(
        "padding",
        "Looks like padding: the {side}'s log-prob is exactly 0 on {count:,} tokens ({share}), but the other side "
        "gives them a probability below one half.",
        "They were not filled in: record them, or leave these tokens out with response_mask.",
    ),
    "all unfilled": Sign(
        "padding",
        "Looks like padding: the {side}'s log-prob is exactly 0 on all {total:,} tokens. It was not filled in, or "
        "sampling was greedy.",
    ),
    "opposite sides": Sign(
        "padding",
        "Looks like padding on opposite sides: the {side}'s log-probs are padded with zeros on the {end}, those of the "
        "other side are not. In {rows} the text agrees if it is moved by their number (mean |Δ| {after} instead of "
        "{before}).",
        "Pad both on one side, and cut both with one mask.",
    ),
    "shift of all": Sign(
        "shift by one",
        "Looks like a shift by one: π_old of a token matches π_rollout of the {neighbour} (mean |Δ| {after} instead of "
        "{before}).",
    ),
    "shift of some": Sign(
        "shift by one",
        "Looks like a shift by {by} in {rows}: π_old of a token matches π_rollout of the {neighbour} (mean |Δ| {after} "
        "instead of {before}), in the first of them from token {first} on. One side has lost or added tokens there, as "
        "after a tool call or a second tokenisation:",
        "score the ids that the engine returned.",
    ),
    "another base": Sign(
        "beyond rounding",
        "Logarithms of two bases{where}: π_old's are {base:.3f} times those of π_rollout on every token, so",
        "{advice}.",
    ),
    "identical": Sign("identical", "Identical: both sides have the same {total:,} log-probs, to the last bit."),
    "top-p mass": Sign(
        "top-p mass",
        "Looks like top-p or top-k: π_old ≤ π_rollout on {share} of the tokens. The mean ratio, {mean:.3f}, is the "
        "probability mass that the cut kept.",
    ),
    "temperature": Sign(
        "temperature",
        "Looks like temperature: the slope of the differences between logits is {slope:.2f}. It should be 1/T − 1, so "
        "the trainer's temperature is about {times:.2f} times that of the engine's log-probs.{raw}",
    ),
    "stale head": Sign(
        "stale tensor",
        "May be a stale output head: constants per token id explain {share} of the variance of the differences between "
        "logits; k3 is {k3}.",
        "Compare the head's weights on both sides.",
    ),
    "clean": Sign("clean", "Clean: k3 is {k3}, no more than another order of sums in float32 makes."),
    "precision": Sign(
        "precision",
        "Looks like precision: k3 is {k3}. Gaps of this size were measured with {causes}, for example {example}. The "
        "logits differ by {noise}, and {above} of the ratios are above 1.{more}",
    ),
    "undecided": Sign(
        "undecided",
        "Undecided: k3 is {k3}. Rounding to 16 bits made at most {most} on the models that were measured{near}. Fewer "
        "bits make more, and so do weights a few updates old, or updates that the engine's format rounds away. Gaps of "
        "this size were measured with {causes}; on another model each of them may be larger or smaller, and the "
        "log-probs do not show which one it is.",
        "Measure again right after a weight sync: a gap from old weights disappears. Measure with the engine in "
        "float32: a gap from its rounding disappears. {tail}",
    ),
    "beyond rounding": Sign(
        "beyond rounding",
        "Beyond rounding: k3 is {k3}, and the coarsest measured rounding makes at most {most}. Causes of such gaps are "
        "another prompt or chat template, much older weights, a bug, or a coarser format or a model that was not "
        "measured.",
        "Compare the token ids of both sides, and measure again right after a weight sync. {tail}",
    ),
    "few tokens": Sign(
        "outlier",
        "{subject} of k3: {names}, counted from 0. With {them} k3 is {with_them}, without {them} {without}.",
    ),
    "few answers": Sign(
        "outlier",
        "{percent} % of k3 is in {name}: {share} of the tokens. With them k3 is {with_them}, without them {without}.",
        "{advice}",
    ),
    "old weights": Sign(
        "old weights",
        "Old weights: k3 of the part that the age of the weights makes is {age}, that of the engine's part {engine}.",
    ),
}


def mend_first(symptoms: Sequence[Symptom]) -> Symptom | None:
    """Return the strongest symptom of a fault that must be mended before a correction is chosen; None if there is none.

    Tokens that were left out because the engine has no log-prob for them are such a fault if they are most of the
    batch, and outliers if they are whole answers or one place of every answer.
    """
    faults = [
        symptom
        for symptom in symptoms
        if symptom.pattern in MEND_FIRST or (symptom.pattern == "outlier" and symptom.places is not None)
    ]
    return next((fault for fault in faults if fault.numbers.get("left_out", 1.0) >= 0.5), None)


def without_outliers(batch: TokenBatch, symptoms: list[Symptom]) -> TokenBatch:
    """Return the batch without the tokens that a symptom names, and without its places."""
    mask = batch.response_mask.clone()
    for symptom in symptoms:
        for row, column in symptom.tokens:
            mask[row, column] = False
        if symptom.places is not None:
            mask &= ~symptom.places
    return batch.replace(response_mask=mask) if bool((mask != batch.response_mask).any()) else batch


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
