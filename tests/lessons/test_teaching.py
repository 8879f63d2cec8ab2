"""The notes for teachers, and the lists of lessons in both READMEs: what they state is so."""

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
LESSONS = REPOSITORY / "lessons"
INDEX = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
PLANS = dict(
    part.split("\n", 1)
    for part in re.split(r"^## ", (LESSONS / "TEACHING.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(LESSONS)
    return importlib.import_module("_build")


MINUTES = {"90 minutes": 90, "Half a day": 240, "The first day": 420, "The second day": 430}
BEFORE = {"The second day": "The first day"}
"""Plan → the plan that its class has already done."""
CUT_SHORT = {"15"}
"""Lessons of which a plan leaves out an exercise, as its row says."""


@pytest.mark.parametrize(("plan", "minutes"), MINUTES.items())
def test_a_plan_takes_as_long_as_it_says(plan: str, minutes: int) -> None:
    assert sum(map(int, re.findall(r"^\| (\d+) \|", PLANS[plan], flags=re.MULTILINE))) == minutes


@pytest.mark.parametrize("plan", MINUTES)
def test_a_plan_gives_a_lesson_the_time_that_it_takes(plan: str) -> None:
    planned = re.findall(r"^\| (\d+) \| Lesson (\d\d)", PLANS[plan], flags=re.MULTILINE)
    assert planned
    for minutes, number in planned:
        lesson = next(entry for slug, entry in INDEX.items() if slug.startswith(number))
        assert int(minutes) >= lesson["minutes"] - (20 if number in CUT_SHORT else 0), number


@pytest.mark.parametrize("plan", MINUTES)
def test_a_plan_has_what_a_lesson_needs_before_it(plan: str) -> None:
    both = PLANS.get(BEFORE.get(plan, ""), "") + PLANS[plan]
    planned = re.findall(r"^\| \d+ \| Lesson (\d\d)", both, flags=re.MULTILINE)
    for place, number in enumerate(planned):
        needed = next(entry["prerequisites"] for slug, entry in INDEX.items() if slug.startswith(number))
        assert {slug[:2] for slug in needed} <= set(planned[:place]), number


def test_both_readmes_list_the_lessons(build: ModuleType) -> None:
    for folder, link in ((REPOSITORY, r"\(lessons/\w+\.ipynb\)"), (LESSONS, r"\(\w+\.ipynb\)")):
        readme = (folder / "README.md").read_text(encoding="utf-8")
        assert build.with_lessons(folder / "README.md") == readme
        assert len(re.findall(link, readme)) == len(INDEX)
