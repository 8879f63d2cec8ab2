"""Every exercise of the lessons: its check accepts the right answer, and knows typical wrong ones."""

import importlib
import sys
from pathlib import Path

import pytest

from rlcorr.teaching.check import Exercise, problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

EXERCISES = {
    f"{path.stem.removeprefix('lesson_')}-{name}": value
    for path in sorted((LESSONS / "exercises").glob("*.py"))
    for name, value in vars(importlib.import_module(f"exercises.{path.stem}")).items()
    if isinstance(value, Exercise)
}
HEAVY = {"mini_update-UPDATE", "mini_checks-SAMPLE", "15-DIAGNOSE"}
"""Half a second for each answer."""
light_or_heavy = pytest.mark.parametrize(
    "names",
    [pytest.param(set(EXERCISES) - HEAVY, id="light"), pytest.param(HEAVY, id="heavy", marks=pytest.mark.slow)],
)


def test_every_lesson_has_exercises() -> None:
    files = list((LESSONS / "exercises").glob("lesson_*.py"))
    assert {name[:2] for name in EXERCISES} >= {path.stem[-2:] for path in files}


@light_or_heavy
def test_the_right_answer_is_accepted(names: set[str]) -> None:
    for name in sorted(names):
        assert problem(EXERCISES[name].expected, EXERCISES[name]) is None, name


def test_three_mistakes_are_known_and_told_apart() -> None:
    for name, exercise in EXERCISES.items():
        assert len({mistake.message for mistake in exercise.mistakes}) >= 3, name


@light_or_heavy
def test_a_typical_mistake_is_named(names: set[str]) -> None:
    for name in sorted(names):
        exercise = EXERCISES[name]
        for mistake in exercise.mistakes:
            sentence = problem(mistake.answer, exercise)
            assert sentence is not None, (name, mistake.message)
            assert sentence.startswith(mistake.message), (name, mistake.message)


def test_no_answer_is_no_success() -> None:
    def not_yet(*_: object) -> None:
        raise NotImplementedError("write it")

    for name, exercise in EXERCISES.items():
        assert problem(not_yet, exercise) == "Not yet: write it", name
        assert problem(lambda *_: None, exercise) == "Nothing came back: is there a return?", name


def test_a_message_names_the_inputs_and_the_part_that_is_wrong() -> None:
    """The reference of this exercise is a function whose parameters have no names; the learner's have."""
    sentence = problem(lambda log_probs, ref_log_probs: log_probs - 2 * ref_log_probs, EXERCISES["08-STRAIGHT_THROUGH"])
    assert sentence is not None
    assert "\n  log_probs     = [" in sentence
    assert "\n  ref_log_probs = [" in sentence
    assert "\nat ['value'], " in sentence
