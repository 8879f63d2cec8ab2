"""The capstone: its recordings are small and hide their origin, and its checks give reasons and no answers."""

import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlcorr.teaching.check import problem

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
sys.path.insert(0, str(LESSONS))

from exercises import capstone  # noqa: E402 — a file of the lessons, not of a package

FILES = sorted(capstone.FOLDER.rglob("*.*"))


def test_the_recordings_are_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in FILES) <= 600_000
    for name in capstone.NAMES:
        for batch in (capstone.load(name, 1), capstone.load(name, 2), capstone.held_out(name)):
            batch.check_values()
            assert len(batch.response_mask) >= 32
            assert {"advantages", "rewards", "group_ids", "response_ids"} <= set(batch.tensors())


def test_nothing_names_a_cause_or_an_origin() -> None:
    causes = [cause.encode() for cause in capstone.CAUSES]
    for path in FILES:
        content = path.read_bytes()
        assert not any(cause in content for cause in causes), path
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            assert set(table["response"].to_pylist()) == set(table["prompt"].to_pylist()) == {""}
            assert set(table["policy_version"].to_pylist()) == {0}


def test_the_answers_solve_it() -> None:
    assert len(set(capstone.opened().values())) == len(capstone.NAMES)
    assert problem(capstone.opened, capstone.DIAGNOSES) is None
    assert problem(capstone.sound_plan, capstone.PLANS) is None


@pytest.mark.parametrize("claim", capstone.CAUSES)
def test_a_wrong_cause_is_refused_with_a_reason_and_without_the_answer(claim: str) -> None:
    right = capstone.opened()
    for name in capstone.NAMES:
        words = capstone.graded(right | {name: claim})[name]
        if claim == right[name]:
            assert words == "right"
        else:
            assert words.startswith(f"not {claim}: ")
            assert any(character.isdigit() for character in words) or claim == "stale head"
            named = [cause for cause in capstone.CAUSES if cause in words.replace(f"not {claim}: ", "")]
            assert right[name] not in named or right[name] == "rounding"  # "rounding keeps the mean ratio at 1"


def test_a_plan_that_the_course_supports_is_accepted_and_one_that_it_refutes_is_not() -> None:
    """Lesson 04: a cap helps against old weights; against the others it has shown no difference. Lesson 08: no rule."""
    plan, causes = capstone.sound_plan(), capstone.opened()
    nothing, cap = (capstone.CorrectionConfig(), 1.0), (capstone.CAP, 1.0)
    for name, cause in causes.items():
        if cause in ("rounding", "coarse format"):
            assert {capstone.graded_plan(plan | {name: one})[name] for one in (nothing, cap)} == {"right"}
        if cause == "old weights":
            assert capstone.graded_plan(plan | {name: cap})[name] == "right"
            refused = capstone.graded_plan(plan | {name: nothing})[name]
            assert refused.endswith("changed the accuracy by 0.22 [0.13, 0.31] (lesson 04).")


def test_a_wrong_plan_is_refused_with_a_reason() -> None:
    plan, causes = capstone.sound_plan(), capstone.opened()
    corrected = [name for name in capstone.NAMES if plan[name][0] is not None]
    assert len(corrected) == 3
    for name in capstone.NAMES:
        if name in corrected:
            refused = capstone.graded_plan(plan | {name: (plan[name][0], 0.8)})[name]
            assert refused == "you expect 0.80; on the held-out step it keeps 1.00."
            assert "nothing can be repaired" in capstone.graded_plan(plan | {name: (None, None)})[name]
            uncapped = capstone.graded_plan(plan | {name: (capstone.UNCAPPED, 1.0)})[name]
            assert uncapped.startswith("the largest weight") or causes[name] == "rounding"
            no_rule = capstone.graded_plan(capstone.rejecting_plan())[name]
            assert re.match(r"it rejects \d+% of the tokens\. No rejection rule was better than none", no_rule)
        else:
            other = plan[corrected[0]]
            assert "can be repaired" in capstone.graded_plan(plan | {name: other})[name]
    assert {causes[name] for name in corrected} == {"rounding", "coarse format", "old weights"}
