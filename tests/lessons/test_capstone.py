"""The capstone: its recordings are small and hide their origin, and its checks give reasons and no answers."""

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


def test_a_wrong_plan_is_refused_with_a_reason() -> None:
    plan, causes = lesson_19.sound_plan(), lesson_19.opened()
    corrected = [name for name in lesson_19.NAMES if plan[name][0] is not None]
    assert len(corrected) == 3
    for name in lesson_19.NAMES:
        if name in corrected:
            config, share = plan[name]
            assert share is not None
            refused = lesson_19.graded_plan(plan | {name: (config, share - 0.2)})[name]
            assert refused.startswith(f"you expect {share - 0.2:.2f}; on the held-out step it keeps ")
            assert "nothing can be repaired" in lesson_19.graded_plan(plan | {name: (None, None)})[name]
            without_rule = lesson_19.CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
            assert "add one" in lesson_19.graded_plan(plan | {name: (without_rule, 1.0)})[name]
            strict = lesson_19.graded_plan(plan | {name: (lesson_19.STRICT, 1.0)})[name]
            assert strict != "right"
        else:
            other = plan[corrected[0]]
            assert "can be repaired" in lesson_19.graded_plan(plan | {name: other})[name]
    assert {causes[name] for name in corrected} == {"rounding", "coarse format", "old weights"}
