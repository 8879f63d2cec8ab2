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


def last_fault(looks: Sequence[Look]) -> tuple[int, Symptom] | None:
    """Return the last step with a fault that must be mended first, and the fault; None if no step has one."""
    for summary in reversed(looks):
        if (fault := mend_first(summary.symptoms)) is not None:
            return summary.step, fault
    return None


def verdict_lines(looks: Iterable[Look], unit: str = "step") -> list[str]:
    """Return one line per pattern, in the order in which the patterns first occur.

    It says how many steps fit the pattern, and what `triage` says of the worst of them: the step with the largest k3,
    or the largest strength if the test of the pattern does not measure k3.
    """
    by_pattern: dict[Pattern, list[tuple[int, Symptom]]] = {}
    for summary in looks:
        for symptom in summary.symptoms:
            by_pattern.setdefault(symptom.pattern, []).append((summary.step, symptom))
    lines = []
    for pattern, symptoms in by_pattern.items():
        worst, symptom = max(symptoms, key=lambda pair: pair[1].numbers.get("k3", pair[1].strength))
        count = len({step for step, _ in symptoms})
        steps = f"1 {unit}" if count == 1 else f"{count} {unit}s, the worst is {unit} {worst}"
        if pattern == "outlier" and count == 1:  # its sentence names rows of this step
            steps = f"{unit} {worst}"
        lines.append(f"{pattern} ({steps}): {symptom.sentence}")
    return lines
