"""The sentences that join a gradient step with training runs, and where the two disagree."""

import html
import re
from urllib.parse import parse_qsl

import pytest
from app_pages import committed, line_and_state, live_parts, one_scan, open_app, root, said

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study_ends import StudyEnds

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEWS = ("views/gradient.py", "views/compare.py")
BETTER, WORSE, UNKNOWN = Interval(0.2, 0.1, 0.3), Interval(-0.2, -0.3, -0.1), Interval(0.2, -0.1, 0.5)


def ends(significant: int) -> StudyEnds:
    """Old weights; two arms that reject sequences end below no correction, and a cap above it."""
    by_kind = {"nothing": {"a": 0.3}, "sequences": {"b": 0.1, "c": 0.204}, "token cap": {"d": 0.5}}
    pairs = {(kind, other): significant for kind in by_kind for other in by_kind if kind != other}
    return StudyEnds("s", 60, 3, "reward", "a small model", 8, by_kind, pairs)


@pytest.mark.parametrize(
    ("significant", "progress", "parts"),
    [
        (0, None, ["ended at a reward of 0.10 to 0.20, below no correction (0.30). None of these 2 differences is"]),
        (1, UNKNOWN, ["1 of these 2 differences is significant on 3 seeds. (Study `s`"]),
        (2, WORSE, ["All 2 differences are significant on 3 seeds. (Study `s`"]),
        (2, BETTER, ["All 2 differences are", "This contradicts the gradient step above"]),
        (1, BETTER, ["1 of these 2", "points the other way than the gradient step above, but not significantly"]),
    ],
)
def test_one_kind(committed: None, significant: int, progress: Interval | None, parts: list[str]) -> None:
    from text import study_ends as say

    sentence = say.of_kind(ends(significant), "sequences", progress)
    assert sentence.startswith("In 60 training steps of a small model on weights eight updates old, rules that reject")
    for part in parts:
        assert part in sentence
    assert ("gradient step above" in sentence) == (progress is BETTER)


def test_two_kinds(committed: None) -> None:
    """The progress is B minus A: of rules that reject sequences minus a cap, which ends higher in the study."""
    from text import study_ends as say

    both = say.of_two(ends(2), "token cap", "sequences", BETTER)
    assert (
        "a cap on token weights (A) ended at a reward of 0.50, rules that reject whole sequences (B) at 0.10 to" in both
    )
    assert "and no correction at 0.30." in both
    assert "This contradicts" in both
    assert "This contradicts" not in say.of_two(ends(2), "token cap", "sequences", WORSE)
    assert "This contradicts" in say.of_two(ends(2), "sequences", "token cap", WORSE)
    assert "This contradicts" in say.of_two(ends(2), "nothing", "sequences", BETTER)
    assert "This contradicts" in say.of_two(ends(2), "sequences", "nothing", WORSE)
    assert "(A)" not in say.of_two(ends(2), "sequences", "sequences", None)


def test_compare_says_that_a_study_contradicts_it(committed: None) -> None:
    """The page opens with this run, a cap (A) and a rule that rejects most answers (B), whose one step is better."""
    at = open_app(VIEWS[1])
    assert "| stale_4 ·" in line_and_state(at)
    texts = said(at)
    assert "With 256 answers in a batch, B makes more progress: its η is 0.1" in texts
    assert "on weights eight updates old, a cap on token weights (A) ended at a reward of 0.44" in texts
    assert "This contradicts the gradient step above" in texts


def test_the_sentence_links_to_its_study(committed: None) -> None:
    (part,) = live_parts(open_app(VIEWS[1], run="stale_4", hide="links"))
    (link,) = re.findall(r'<a href="\?([^"]*)">the study stale_8</a>', part["said"])
    linked = dict(parse_qsl(html.unescape(link)))
    assert linked == {"view": "training", "run": "stale_4", "hide": "links", "part": "Study", "study": "stale_8"}
    assert "(Study" not in part["said"]
    text = said(open_app("views/training.py", **{key: text for key, text in linked.items() if key != "view"}))
    assert "each batch sampled by weights that are eight steps old" in text
