"""The diagnosis of several steps, a line per pattern."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlcorr.analysis.symptoms import Pattern, Symptom
from rlcorr.analysis.triage import triage
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Look:
    """A summary of one step: its size, and what `triage` finds in it."""

    step: int
    tokens: int
    unpaired: int  # tokens that are left out, because the engine's log-prob was NaN
    symptoms: list[Symptom]


def look(step: int, batch: TokenBatch) -> Look:
    """Return what a step looks like. Raises `UsageError` as `triage` does."""
    return Look(step, int(batch.response_mask.sum()), batch.count_unpaired(), triage(batch))


@dataclass(frozen=True)
class Verdict:
    """One pattern, the steps that fit it, and what `triage` says of the worst of them."""

    pattern: Pattern
    steps: tuple[int, ...]
    worst: int
    sentence: str


def verdicts(looks: Iterable[Look]) -> list[Verdict]:
    """Return a verdict per pattern of these steps, in the order in which the patterns come up.

    The worst step of a pattern has the largest k3, or where its test does not measure k3, the largest strength.
    """
    by_pattern: dict[Pattern, list[tuple[int, Symptom]]] = {}
    for one in looks:
        for symptom in one.symptoms:
            by_pattern.setdefault(symptom.pattern, []).append((one.step, symptom))
    return [_verdict(pattern, symptoms) for pattern, symptoms in by_pattern.items()]


def verdict_lines(verdicts_of_run: Sequence[Verdict], unit: str = "step") -> list[str]:
    """Return a line per verdict: the pattern, how many steps fit it, and the sentence about the worst.

    >>> verdict_lines([Verdict("clean", (1, 2), 2, "Clean: k3 is 3e-9.")])
    ['clean (2 steps, the worst is step 2): Clean: k3 is 3e-9.']
    """
    lines = []
    for one in verdicts_of_run:
        count = len(one.steps)
        where = f"1 {unit}" if count == 1 else f"{count} {unit}s, the worst is {unit} {one.worst}"
        lines.append(f"{one.pattern} ({where}): {one.sentence}")
    return lines


def _verdict(pattern: Pattern, symptoms: Sequence[tuple[int, Symptom]]) -> Verdict:
    worst, symptom = max(symptoms, key=lambda one: one[1].numbers.get("k3", one[1].strength))
    return Verdict(pattern, tuple(dict.fromkeys(step for step, _ in symptoms)), worst, symptom.sentence)
