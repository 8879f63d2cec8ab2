"""The diagnosis of several steps, a line per pattern."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlcorr.analysis.symptoms import Pattern, Symptom
from rlcorr.analysis.triage import triage
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Verdict:
    """One pattern, the steps that fit it, and what `triage` says of the worst of them."""

    pattern: Pattern
    steps: tuple[int, ...]
    worst: int
    sentence: str


def verdicts(batches: Iterable[tuple[int, TokenBatch]]) -> list[Verdict]:
    """Return what `triage` finds in these steps, in the order in which the patterns come up, holding a step at a time.

    The worst step of a pattern has the largest k3, or where its test does not measure k3, the largest strength. Raises
    `UsageError` as `triage` does.
    """
    by_pattern: dict[Pattern, list[tuple[int, Symptom]]] = {}
    for step, batch in batches:
        for symptom in triage(batch):
            by_pattern.setdefault(symptom.pattern, []).append((step, symptom))
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
