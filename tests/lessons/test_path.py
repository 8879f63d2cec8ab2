"""A lesson takes as long as it says, and the numbers in its sentences come from its results."""

import importlib
import itertools
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
INDEX: dict[str, dict[str, Any]] = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
FIVE = [slug for slug, entry in INDEX.items() if "decides" in entry]
"""The path."""


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    if str(LESSONS) not in sys.path:
        sys.path.insert(0, str(LESSONS))
    return importlib.import_module("_path")


def read(slug: str) -> Any:
    return nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4)


@pytest.mark.parametrize("slug", INDEX)
def test_a_lesson_takes_the_minutes_that_it_states_in_short_cells_without_typed_numbers(
    measure: ModuleType, slug: str
) -> None:
    lesson = read(slug)
    length = measure.length(lesson)
    assert INDEX[slug]["minutes"] == measure.stated(length.minutes)
    assert length.cells <= 55
    assert length.longest <= 15
    assert list(measure.typed_numbers(lesson)) == []


def test_the_path_takes_four_hours_in_lessons_of_fifty_minutes_and_needs_no_other_lesson(measure: ModuleType) -> None:
    lengths = [measure.length(read(slug)).minutes for slug in FIVE]
    assert list(INDEX)[:5] == FIVE
    assert max(lengths) <= 50
    assert sum(lengths) <= 240
    assert all(set(INDEX[slug]["prerequisites"]) <= set(FIVE) for slug in FIVE)
    for lesson, following in itertools.pairwise(FIVE):
        assert f"Next: [lesson {following[:2]}]({following}.ipynb)" in " ".join(read(lesson).cells[0].source.split())


def test_all_lessons_together_take_at_most_twenty_hours(measure: ModuleType) -> None:
    """By the rule of TEACHING.md, which counts no part that is folded."""
    assert len(INDEX) <= 17
    assert sum(measure.length(read(slug)).minutes for slug in INDEX) <= 20 * 60


# --- the measure itself ---


def notebook(*cells: tuple[str, str] | tuple[str, str, list[str]], said: str = "") -> Any:
    made = []
    for kind, source, *tags in cells:
        new = nbformat.v4.new_markdown_cell if kind == "text" else nbformat.v4.new_code_cell
        made.append(new(source, metadata={"tags": tags[0]} if tags else {}))
    if said:
        made[-1].outputs = [nbformat.v4.new_output("display_data", {"text/markdown": said})]
    return nbformat.v4.new_notebook(cells=made)


def test_words_cells_and_minutes_of_a_small_lesson(measure: ModuleType) -> None:
    """One minute for the visible cell and none for the folded one, 3 for the prediction, 4/3 for the question, 1.6 · 4
    for the exercise; nothing for its check, its solution, the references and the appendix.

    Besides, one equation, a picture (1.5) with a slider (2), and three lines of a table and two printed ones, at 0.1.
    """
    lesson = notebook(
        ("text", "# A title of five words\n\n$$ a $$"),
        ("code", "a = 1\nb = 2"),
        ("text", "## Predict, then reveal\n\nMore?"),
        ("text", "## Exercise 1\n\n*4 minutes.*"),
        ("code", "raise NotImplementedError(1)"),
        ("code", "check()", ["check"]),
        ("code", "solution()", ["solution", "hide-input"]),
        ("text", "## Check yourself\n\n**1. Why?**\n\n<details><summary>No.</summary>Yes.</details>"),
        ("text", "## References\n\n1. Many words that nobody counts"),
        ("code", "say(x)\n" * 30, ["hide-input"]),
        said="three more words\n\n| a |\n|---|\n| b |\n| c |",
    )
    figure = {"data": [], "layout": {"height": 100, "sliders": [{}]}}
    lesson.cells[1].outputs = [
        nbformat.v4.new_output("display_data", {"application/vnd.plotly.v1+json": figure}),
        nbformat.v4.new_output("stream", name="stdout", text="1\n2\n"),
    ]
    more = (
        nbformat.v4.new_markdown_cell("## More practice"),
        nbformat.v4.new_markdown_cell("### Exercise 2\n\n*5 minutes.*"),
    )
    lesson.cells += [*more, nbformat.v4.new_markdown_cell("## Appendix\n\nEverything else.")]
    length = measure.length(lesson)
    # title, "$$", "a", "$$"; prediction; exercise, "*4" and "minutes.*"; "## Check yourself", "**1." "Why?**" "No."
    # "Yes."; what is said, and the table: three lines of three words, and one of one
    words = 9 + 5 + (3 + 2) + (3 + 4) + 3 + 10
    assert length.words == words
    assert length.cells == 8
    assert length.longest == 2
    assert length.minutes == pytest.approx(words / 100 + 1 + 3 + 4 / 3 + 1.6 * 4 + 1 + 1.5 + 2 + (3 + 2) / 10)
    assert measure.practice(lesson) == pytest.approx(
        8 / 100 + 1.6 * 5
    )  # three words, three of a heading, "*5 minutes.*"
    assert [measure.stated(minutes) for minutes in (4.9, 5.0, 5.1)] == [5, 5, 10]


@pytest.mark.parametrize(
    "text",
    [
        "The noise fell to 0.31.",
        "## A heading\n\nIn 26 of the steps it rings.",
        "A weight of 31, see [the bench](http://localhost:8501/bench?run=bf16).",
    ],
)
def test_a_typed_number_is_seen(measure: ModuleType, text: str) -> None:
    assert list(measure.typed_numbers(notebook(("text", text))))


@pytest.mark.parametrize(
    "text",
    [
        "## By hand: three actions\n\nThe rewards are 1, 0 and 4.25.",
        "## Exercise 2: a cap\n\nReturn 0.727 for these weights.",
        "## Check yourself\n\n**1. The ESS is 0.98. Is that good?**",
        "Others report 5.9 % ([pull request](https://github.com/huggingface/trl/pull/7269)).",
        "In float32, 22.6 % were the same. (`make bench ARGS=invariance` prints this.)",
        "Ratios average to 1, and a rejected token has weight 0.",
        "See lesson 07, lessons 00 to 02, and step 40 of `kv_fp8_e5m2`, in bfloat16 or in 8 bits.",
    ],
)
def test_a_number_that_is_no_measurement_is_let_through(measure: ModuleType, text: str) -> None:
    assert list(measure.typed_numbers(notebook(("text", text)))) == []
