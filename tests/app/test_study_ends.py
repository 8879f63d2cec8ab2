"""The sentences that join a gradient step with training runs, and where the two disagree."""

import html
import math
import re
from statistics import fmean, stdev
from urllib.parse import parse_qsl

import pytest
from app_pages import committed, line_and_state, live_parts, one_scan, open_app, root, said
from scipy import stats

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
        (
            0,
            None,
            ["ended at a reward of 0.10 to 0.20, below no correction (0.30). Three seeds cannot tell"],
        ),
        (1, UNKNOWN, ["1 of these 2 differences is significant. (Study `s`"]),
        (2, WORSE, ["Each of these 2 differences is significant (3 seeds). (Study `s`"]),
        (2, BETTER, ["In training no correction ended significantly higher. On this one batch the step of rules that"]),
        (1, BETTER, ["In training no correction ended higher, though not significantly. On this one batch the"]),
    ],
)
def test_one_kind(committed: None, significant: int, progress: Interval | None, parts: list[str]) -> None:
    """What contradicts the step is said first."""
    from text import study_ends as say

    sentence = say.of_kind(ends(significant), "sequences", progress)
    where = "In 60 training steps of a small model on weights eight updates old, rules that reject"
    assert sentence.startswith(parts[0] if progress is BETTER else where)
    for part in (*parts, where):
        assert part in sentence
    assert ("On this one batch" in sentence) == (progress is BETTER)


def test_two_kinds(committed: None) -> None:
    """Each difference that is called significant has a name: three ends give three differences."""
    from text import study_ends as say

    both = say.of_two(ends(2), "token cap", "sequences")
    assert "a cap on token weights (A) ended at a reward of 0.50, rules that reject whole answers (B) at 0.10" in both
    assert "and no correction at 0.30. A ended significantly above each of the two of B (3 seeds). Both differ" in both
    none = say.of_two(ends(0), "token cap", "sequences")
    assert "Three seeds cannot tell A from B. Neither differs significantly from no correction." in none
    assert "(A)" not in say.of_two(ends(2), "sequences", "sequences")
    against = ends(2), "token cap", "sequences"
    assert say.contradiction(*against, WORSE, ("A", "B")).startswith("In training A ended significantly higher.")
    assert say.contradiction(*against, BETTER) == say.contradiction(*against, None) == ""


def test_compare_says_first_that_a_study_contradicts_it(committed: None) -> None:
    """The page opens with this run, a cap (A) and a rule that rejects most answers (B), whose one step is better."""
    at = open_app(VIEWS[1])
    assert "| stale_4 ·" in line_and_state(at)
    texts = said(at)
    assert "# In training A ended significantly higher. On this one batch the step of B is better." in texts
    assert "A step of B on 256 answers makes more progress: η is 0.1" in texts
    assert "on weights eight updates old, a cap on token weights (A) ended at a reward of 0.44" in texts


def test_the_sentence_links_to_its_study(committed: None) -> None:
    (part,) = live_parts(open_app(VIEWS[1], run="stale_4", hide="links"))
    link, *_ = re.findall(r'<a href="\?([^"]*)">the study stale_8</a>', part["said"])
    linked = dict(parse_qsl(html.unescape(link)))
    assert linked == {"view": "training", "run": "stale_4", "hide": "links", "part": "Study", "study": "stale_8"}
    assert "(Study" not in part["said"]
    text = said(open_app("views/training.py", **{key: text for key, text in linked.items() if key != "view"}))
    assert "each batch sampled by weights that are eight steps old" in text


def test_the_control_is_compared_as_many_steps_later_as_the_weights_are_old(committed: None) -> None:
    """Of smol_stale_6: the gain of its control, in reward over six steps, ends six steps earlier; t of five seeds."""
    from data import studies

    result = studies.table("smol_stale_6")
    gains = []
    for seed in sorted({row["seed"] for row in result.rows}):
        steps = [row for row in result.rows if row["preset"] == "fresh" and row["seed"] == seed]
        rewards = {row["step"]: row["reward"] for row in steps}
        gains.append(fmean(rewards[step] for step in range(13, 19)) - fmean(rewards[step] for step in range(1, 7)))
    assert len(gains) == 5
    half = stats.t.ppf(0.975, 4) * stdev(gains) / math.sqrt(5)
    shown = result.endpoint["fresh_delayed"]
    assert (shown.value, shown.high - shown.value) == pytest.approx((fmean(gains), half))
    assert result.endpoint["fresh"].value != shown.value
