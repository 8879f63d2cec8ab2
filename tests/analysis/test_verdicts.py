"""The diagnosis of several steps: a line per pattern, with the worst step."""

from causes import draw, noisy, rounded, scored, small, unfilled

from rlcorr.analysis.triage import triage
from rlcorr.analysis.verdicts import look, verdict_lines, verdicts


def test_a_line_per_pattern_with_the_worst_step() -> None:
    """More noise has a larger k3, so step 3 is the worst of the two that are undecided."""
    z = small()
    batches = {1: scored(draw(z), rounded(z)), 2: scored(draw(z), noisy(z, 0.3)), 3: scored(draw(z), noisy(z, 0.6))}
    precision, undecided = verdicts(look(step, batch) for step, batch in batches.items())
    assert (precision.pattern, precision.steps) == ("precision", (1,))
    assert (undecided.pattern, undecided.steps, undecided.worst) == ("undecided", (2, 3), 3)
    assert undecided.sentence == triage(batches[3])[0].sentence
    first, second = verdict_lines([precision, undecided])
    assert first == f"precision (1 step): {precision.sentence}"
    assert second == f"undecided (2 steps, the worst is step 3): {undecided.sentence}"


def test_a_step_with_two_patterns_is_in_both() -> None:
    both = verdicts([look(7, unfilled(draw(small(), temperature=0.7)))])
    assert [(one.pattern, one.steps) for one in both] == [("temperature", (7,)), ("padding", (7,))]
    assert [line.split(":")[0] for line in verdict_lines(both, "part")] == ["temperature (1 part)", "padding (1 part)"]


def test_no_steps_have_no_verdict() -> None:
    assert verdicts([]) == []
    assert verdict_lines([]) == []
