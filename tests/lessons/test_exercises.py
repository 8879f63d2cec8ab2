"""Every exercise of the lessons: its check accepts right answers, however written, and knows typical wrong ones."""

import importlib
import sys
from pathlib import Path

import pytest

from rlcorr.teaching.check import Exercise, Mistake, problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

EXERCISES = {
    f"{path.stem[-2:]}-{name}": value
    for path in sorted((LESSONS / "exercises").glob("lesson_*.py"))
    for name, value in vars(importlib.import_module(f"exercises.{path.stem}")).items()
    if isinstance(value, Exercise)
}
MISTAKES = [
    pytest.param(exercise, mistake, id=f"{name}-{number}")
    for name, exercise in EXERCISES.items()
    for number, mistake in enumerate(exercise.mistakes)
]
every_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)


@every_exercise
def test_right_answers_are_accepted(exercise: Exercise) -> None:
    assert exercise.equivalents
    for answer in (exercise.expected, *exercise.equivalents):
        assert problem(answer, exercise) is None


@every_exercise
def test_three_mistakes_are_known_and_told_apart(exercise: Exercise) -> None:
    assert len({mistake.says for mistake in exercise.mistakes}) >= 3


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES)
def test_a_typical_mistake_is_named(exercise: Exercise, mistake: Mistake) -> None:
    sentence = problem(mistake.answer, exercise)
    assert sentence is not None
    assert sentence.startswith(mistake.says)


@every_exercise
def test_no_answer_is_no_success(exercise: Exercise) -> None:
    def not_yet(*_: object) -> None:
        raise NotImplementedError("write it")

    assert problem(not_yet, exercise) == "Not yet: write it"
    assert problem(lambda *_: None, exercise) == "Nothing came back: is there a return?"
