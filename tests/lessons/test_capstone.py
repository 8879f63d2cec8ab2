"""The capstone: its recordings are small and hide their origin, and its checks give reasons and no answers."""

import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlcorr.teaching.check import problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

from exercises import lesson_19  # noqa: E402 — a file of the lessons, not of a package

FILES = sorted(lesson_19.FOLDER.rglob("*.*"))


def test_the_recordings_are_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in FILES) <= 600_000
    for name in lesson_19.NAMES:
        for batch in (lesson_19.load(name, 1), lesson_19.load(name, 2), lesson_19.held_out(name)):
            batch.check_values()
            assert len(batch.response_mask) >= 32
            assert {"advantages", "rewards", "group_ids", "response_ids"} <= set(batch.tensors())


def test_nothing_names_a_cause_or_an_origin() -> None:
    causes = [cause.encode() for cause in lesson_19.CAUSES]
    for path in FILES:
        content = path.read_bytes()
        assert not any(cause in content for cause in causes), path
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            assert set(table["response"].to_pylist()) == set(table["prompt"].to_pylist()) == {""}
            assert set(table["policy_version"].to_pylist()) == {0}


def test_the_answers_solve_it() -> None:
    assert len(set(lesson_19.opened().values())) == len(lesson_19.NAMES)
    assert problem(lesson_19.opened, lesson_19.DIAGNOSES) is None
    assert problem(lesson_19.sound_plan, lesson_19.PLANS) is None


@pytest.mark.parametrize("claim", lesson_19.CAUSES)
def test_a_wrong_cause_is_refused_with_a_reason_and_without_the_answer(claim: str) -> None:
    right = lesson_19.opened()
    for name in lesson_19.NAMES:
        words = lesson_19.graded(right | {name: claim})[name]
        if claim == right[name]:
            assert words == "right"
        else:
            assert words.startswith(f"not {claim}: ")
            assert any(character.isdigit() for character in words) or claim == "stale head"
            named = [cause for cause in lesson_19.CAUSES if cause in words.replace(f"not {claim}: ", "")]
            assert right[name] not in named or right[name] == "rounding"  # "rounding keeps the mean ratio at 1"


def test_a_plan_that_the_course_supports_is_accepted_and_one_that_it_refutes_is_not() -> None:
    """Lesson 11: a cap helps against old weights; against the others it has shown no difference. Lesson 07: no rule."""
    plan, causes = lesson_19.sound_plan(), lesson_19.opened()
    nothing, cap = (lesson_19.CorrectionConfig(), 1.0), (lesson_19.CAP, 1.0)
    for name, cause in causes.items():
        if cause in ("rounding", "coarse format"):
            assert {lesson_19.graded_plan(plan | {name: one})[name] for one in (nothing, cap)} == {"right"}
        if cause == "old weights":
            assert lesson_19.graded_plan(plan | {name: cap})[name] == "right"
            refused = lesson_19.graded_plan(plan | {name: nothing})[name]
            assert refused.endswith("changed the accuracy by 0.22 [0.13, 0.31] (lesson 11).")


def test_a_wrong_plan_is_refused_with_a_reason() -> None:
    plan, causes = lesson_19.sound_plan(), lesson_19.opened()
    corrected = [name for name in lesson_19.NAMES if plan[name][0] is not None]
    assert len(corrected) == 3
    for name in lesson_19.NAMES:
        if name in corrected:
            refused = lesson_19.graded_plan(plan | {name: (plan[name][0], 0.8)})[name]
            assert refused == "you expect 0.80; on the held-out step it keeps 1.00."
            assert "nothing can be repaired" in lesson_19.graded_plan(plan | {name: (None, None)})[name]
            uncapped = lesson_19.graded_plan(plan | {name: (lesson_19.UNCAPPED, 1.0)})[name]
            assert uncapped.startswith("the largest weight") or causes[name] == "rounding"
            no_rule = lesson_19.graded_plan(lesson_19.rejecting_plan())[name]
            assert re.match(r"it rejects \d+% of the tokens\. No rejection rule was better than none", no_rule)
        else:
            other = plan[corrected[0]]
            assert "can be repaired" in lesson_19.graded_plan(plan | {name: other})[name]
    assert {causes[name] for name in corrected} == {"rounding", "coarse format", "old weights"}
