"""Every exercise of the lessons: its check accepts the right answer, and knows typical wrong ones."""

import importlib
import sys
from pathlib import Path

import pytest

from rlcorr.teaching.check import Exercise, problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

EXERCISES = {
    f"{path.stem}-{name}": value
    for path in sorted((LESSONS / "exercises").glob("*.py"))
    for name, value in vars(importlib.import_module(f"exercises.{path.stem}")).items()
    if isinstance(value, Exercise)
}
HEAVY = {"mini_update-UPDATE", "mini_checks-SAMPLE", "bugs-DIAGNOSE"}
"""Half a second for each answer."""
light_or_heavy = pytest.mark.parametrize(
    "names",
    [pytest.param(set(EXERCISES) - HEAVY, id="light"), pytest.param(HEAVY, id="heavy", marks=pytest.mark.slow)],
)


def test_every_exercise_is_asked_in_a_lesson_or_a_piece_of_mini_py() -> None:
    asked = "\n".join(path.read_text(encoding="utf-8") for path in LESSONS.glob("[0-9][0-9]_*.py"))
    names = {name.partition("-")[2] for name in EXERCISES} - {"UPDATE"}  # which a lesson makes for its own pieces
    assert [name for name in sorted(names) if f", {name})" not in asked] == []


@light_or_heavy
def test_the_right_answer_is_accepted(names: set[str]) -> None:
    for name in sorted(names):
        assert problem(EXERCISES[name].expected, EXERCISES[name]) is None, name


def test_three_mistakes_are_known_and_told_apart() -> None:
    for name, exercise in EXERCISES.items():
        assert len({message for _, message in exercise.mistakes}) >= 3, name


@light_or_heavy
def test_a_typical_mistake_is_named(names: set[str]) -> None:
    for name in sorted(names):
        exercise = EXERCISES[name]
        for answer, message in exercise.mistakes:
            sentence = problem(answer, exercise)
            assert sentence is not None, (name, message)
            assert sentence.startswith(message), (name, message)


def test_no_answer_is_no_success() -> None:
    def not_yet(*_: object) -> None:
        raise NotImplementedError("write it")

    for name, exercise in EXERCISES.items():
        assert problem(not_yet, exercise) == "Not yet: write it", name
        assert problem(lambda *_: None, exercise) == "Nothing came back: is there a return?", name


def test_a_message_names_the_inputs_and_the_part_that_is_wrong() -> None:
    """The reference of this exercise is a function whose parameters have no names; the learner's have."""
    sentence = problem(
        lambda log_probs, ref_log_probs: log_probs - 2 * ref_log_probs, EXERCISES["kl_estimators-STRAIGHT_THROUGH"]
    )
    assert sentence is not None
    assert "\n  log_probs     = [" in sentence
    assert "\n  ref_log_probs = [" in sentence
    assert "\nat ['value'], " in sentence
