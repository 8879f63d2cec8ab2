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


TUNE, GRADIENT, OPERATE = (f"Half a day: {name}" for name in ("tune a run", "understand the gradient", "operate"))
MINUTES = {"90 minutes": 90, TUNE: 240, GRADIENT: 240, OPERATE: 240}
BEFORE = {GRADIENT: [TUNE], OPERATE: [TUNE, GRADIENT]}
"""Plan → the plans that its class has already done."""
PLANNED = r"^\| (\d+) \| Lesson (\d\d)"


@pytest.mark.parametrize(("plan", "minutes"), MINUTES.items())
def test_a_plan_takes_as_long_as_it_says(plan: str, minutes: int) -> None:
    assert sum(map(int, re.findall(r"^\| (\d+) \|", PLANS[plan], flags=re.MULTILINE))) == minutes


@pytest.mark.parametrize("plan", MINUTES)
def test_a_plan_gives_a_lesson_the_time_that_it_takes(plan: str) -> None:
    planned = re.findall(PLANNED, PLANS[plan], flags=re.MULTILINE)
    assert planned
    for minutes, number in planned:
        lesson = next(entry for slug, entry in INDEX.items() if slug.startswith(number))
        assert int(minutes) >= lesson["minutes"], number


@pytest.mark.parametrize("plan", MINUTES)
def test_a_plan_has_what_a_lesson_needs_before_it(plan: str) -> None:
    met: set[str] = set()
    days = "\n".join(PLANS[name] for name in [*BEFORE.get(plan, []), plan])
    for _, number in re.findall(PLANNED, days, flags=re.MULTILINE):
        slug = next(slug for slug in INDEX if slug.startswith(number))
        assert {*INDEX[slug]["prerequisites"]} <= met, number
        met.add(slug)


def test_every_list_is_that_of_today_and_the_readmes_have_all_lessons(build: ModuleType) -> None:
    """Among them the decision card, whose numbers lesson 04 computes from the studies."""
    for path, name in build.LISTS:
        assert build.with_list(path, name) == path.read_text(encoding="utf-8")
    for made, link in ((build.titles(), r"\(lessons/\w+\.ipynb\)"), (build.table(), r"\(\w+\.ipynb\)")):
        assert len(re.findall(link, made)) == len(INDEX)
