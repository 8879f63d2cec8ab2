"""Every mention of a lesson is one that exists, and a link has the number and the title of its lesson."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
LESSONS = REPOSITORY / "lessons"
INDEX: dict[str, dict[str, Any]] = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
NUMBERS = {slug[:2]: slug for slug in INDEX}
HISTORY = (".github/CHANGELOG.md", ".github/DECISIONS.md", "runs/study/")
"""Texts that keep the numbers of their time: a plan stays as it was committed before its runs."""
MENTION = re.compile(r"(?<!\")\blessons?[\s#]+\[?(\d\d(?:(?:,|[\s#]|and|to|or)+\d\d(?!\d))*)(?!\d|\.\d)", re.IGNORECASE)
LINK = re.compile(r"\[([^\]\[]*)\]\((?:[\w./]*/)?(\d\d_\w+)\.ipynb\)")


def texts() -> dict[str, str]:
    """Return name → text of every tracked file that may name a lesson."""
    endings = ("*.md", "*.py", "*.toml", "*.html", "*.js", "Makefile")
    names = subprocess.run(["git", "ls-files", *endings], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    kept = [name for name in names.stdout.split("\n") if name and not name.startswith((*HISTORY, "tests/"))]
    return {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in kept}


def numbers(mention: str) -> list[str]:
    """Return the numbers of "02", "06 and 08" or "00 to 03", with those between."""
    first, *_, last = [*re.findall(r"\d\d", mention)] * 2
    if "to" in mention:
        return [f"{n:02}" for n in range(int(first), int(last) + 1)]
    return re.findall(r"\d\d", mention)


def test_every_lesson_that_a_text_names_exists_and_none_names_itself() -> None:
    mentions = [
        (name, one) for name, text in texts().items() for part in MENTION.findall(text) for one in numbers(part)
    ]
    assert len(mentions) > 200
    assert [(name, one) for name, one in mentions if one not in NUMBERS] == []
    assert [(name, one) for name, one in mentions if name == f"lessons/{NUMBERS[one]}.py"] == []


def test_every_link_leads_to_a_lesson_whose_number_and_title_it_has() -> None:
    links = [(name, " ".join(text.replace("#", " ").split()), slug)
             for name, whole in texts().items() for text, slug in LINK.findall(whole)]  # fmt: skip
    assert len(links) > 40
    for name, text, slug in links:
        assert slug in INDEX, (name, slug)
        assert not re.search(r"\d\d", text) or slug[:2] in text, (name, text, slug)
        title = re.match(r"\d\d · (.*)", text)
        assert title is None or title[1] == INDEX[slug]["title"], (name, text)


@pytest.mark.parametrize("slug", INDEX)
def test_a_lesson_names_in_its_opening_what_it_needs(slug: str) -> None:
    opening = (LESSONS / f"{slug}.py").read_text(encoding="utf-8").partition("At the end you can")[0]
    named = {one for part in MENTION.findall(opening) for one in numbers(part)}
    assert {needed[:2] for needed in INDEX[slug]["prerequisites"]} <= named
