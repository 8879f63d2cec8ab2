"""The diagnosis of several steps, one line per pattern."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlcorr.analysis.gap_size import GapSize, gap_size
from rlcorr.analysis.symptoms import Pattern, Symptom, mend_first, without_outliers
from rlcorr.analysis.triage import triage
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Look:
    """A summary of one step: its size, that of its gap, and the patterns that `triage` reports."""

    step: int
    tokens: int
    unpaired: int  # tokens that are left out because the engine's log-prob was NaN
    gap: GapSize | None  # without outliers; None if no token has two finite log-probs
    symptoms: list[Symptom]


def look(step: int, batch: TokenBatch) -> Look:
    """Summarise a step. Raises `UsageError` for the same reasons as `triage`."""
    symptoms = triage(batch)
    gap = gap_size(without_outliers(batch, symptoms))
    return Look(step, int(batch.response_mask.sum()), batch.count_unpaired(), gap, symptoms)


@dataclass(frozen=True)
class Verdict:
    """One pattern, the steps that fit it, and the sentence of `triage` about the worst of them."""

    pattern: Pattern
    steps: tuple[int, ...]
    worst: int
    sentence: str


def last_fault(looks: Sequence[Look]) -> tuple[int, Symptom] | None:
    """Return the last step with a fault that must be mended first, and the fault; None if no step has one."""
    for summary in reversed(looks):
        if (fault := mend_first(summary.symptoms)) is not None:
            return summary.step, fault
    return None


def verdicts(looks: Iterable[Look]) -> list[Verdict]:
    """Return one verdict per pattern, in the order in which the patterns first occur.

    The worst step of a pattern has the largest k3, or the largest strength if its test does not measure k3.
    """
    by_pattern: dict[Pattern, list[tuple[int, Symptom]]] = {}
    for summary in looks:
        for symptom in summary.symptoms:
            by_pattern.setdefault(symptom.pattern, []).append((summary.step, symptom))
    return [_verdict(pattern, symptoms) for pattern, symptoms in by_pattern.items()]


def verdict_lines(verdicts_of_run: Sequence[Verdict], unit: str = "step") -> list[str]:
    """Return one line per verdict: the pattern, how many steps fit it, and the sentence about the worst step."""
    lines = []
    for verdict in verdicts_of_run:
        count = len(verdict.steps)
        steps = f"1 {unit}" if count == 1 else f"{count} {unit}s, the worst is {unit} {verdict.worst}"
        if verdict.pattern == "outlier" and count == 1:  # its sentence names rows of this step
            steps = f"{unit} {verdict.worst}"
        lines.append(f"{verdict.pattern} ({steps}): {verdict.sentence}")
    return lines


def _verdict(pattern: Pattern, symptoms: Sequence[tuple[int, Symptom]]) -> Verdict:
    worst, symptom = max(symptoms, key=lambda pair: pair[1].numbers.get("k3", pair[1].strength))
    return Verdict(pattern, tuple(dict.fromkeys(step for step, _ in symptoms)), worst, symptom.sentence)
