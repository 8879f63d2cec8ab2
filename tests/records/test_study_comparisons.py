"""Differences between the arms of a study, and whether η predicted them."""

import math

import pytest

from rlcorr.command.study import verdict_of
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import Endpoint, end_rewards, gains
from rlcorr.records.study_comparisons import (
    compare_endpoints,
    comparisons,
    holm,
    progress_correlation,
    rank_correlation,
)


def trained(arm: str, seed: int, reward: float) -> list[dict]:
    """Return rows of four steps, so the last quarter is one step."""
    return [{"preset": arm, "seed": seed, "step": step, "reward": reward if step == 4 else 9.0} for step in range(1, 5)]


ROWS = [
    *trained("none", 0, 0.1), *trained("none", 1, 0.2), *trained("none", 2, 0.3),
    *trained("a", 0, 1.1), *trained("a", 1, 2.2), *trained("a", 2, 3.3),
    *trained("b", 0, 0.0), *trained("b", 1, 0.1),
]  # fmt: skip


def test_paired_differences() -> None:
    """Check one pair: a − none is 1, 2, 3, so mean 2, deviation 1, n = 3. t(0.975; 2) = 4.3027, half 4.3027/√3.

    t = 2√3, and for 2 degrees of freedom p = 1 − t/√(t² + 2) = 1 − √(12/14). One seed has no interval.
    """
    assert end_rewards(ROWS)["a"] == {0: 1.1, 1: 2.2, 2: 3.3}
    (a,) = comparisons(ROWS, [("a", "none")])
    assert (a.arm, a.against, a.seeds) == ("a", "none", 3)
    assert a.difference.value == pytest.approx(2)
    assert a.difference.high - 2 == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert a.difference.low == pytest.approx(4 - a.difference.high)
    assert not a.difference.tells
    assert a.p_value == pytest.approx(1 - math.sqrt(12 / 14))
    (only,) = comparisons([row for row in ROWS if row["seed"] == 0], [("a", "none")])
    assert (only.difference.value, only.difference.low, only.difference.high) == (
        pytest.approx(1), -math.inf, math.inf,
    )  # fmt: skip


def test_gains() -> None:
    """Check the last two steps less the first two: (5 + 9)/2 − (1 + 2)/2 = 5.5. A skipped step counts in neither."""
    rows = [{"preset": "a", "seed": 0, "step": step, "reward": reward} for step, reward in enumerate([1, 2, 7, 5, 9])]
    assert gains(rows, 2) == {"a": {0: 5.5}}
    assert gains([*rows, {"preset": "a", "seed": 0, "step": 5, "reward": None}], 2) == {"a": {0: 9 - 1.5}}


def test_planned_pairs_come_first_and_no_pair_twice() -> None:
    endpoint = Endpoint(1, 0.03, (("none", "b"),))
    compared = compare_endpoints(ROWS, endpoint)
    assert [(pair.arm, pair.against) for pair in compared] == [("none", "b"), ("a", "none"), ("b", "a")]
    # The first step has a reward of 9, so the gains of a are 1.1 − 9, …: the same differences as of the last steps,
    # here with an interval of 95 % each.
    assert compared[1].difference.high - 2 == pytest.approx(4.30265 / 3**0.5, rel=1e-5)


def test_holm() -> None:
    """Check Holm (1979): 0.01·3, 0.02·2 and 0.6; and that 0.03·1 is raised to 0.02·2 and nothing exceeds 1."""
    assert holm([0.6, 0.01, 0.02]) == pytest.approx([0.6, 0.03, 0.04])
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.2, "better"), (-0.2, -0.01, "worse"), (-0.03, 0.02, "as good"), (-0.031, 0.02, "not known")],
)
def test_what_an_interval_says(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Interval((low + high) / 2, low, high), 0.03) == verdict


def test_more_comparisons_have_wider_intervals() -> None:
    """Check two pairs: t(0.9875; 2) = 6.2053. b has only seeds 0 and 1, and is 0.1 lower in both: no spread."""
    a, b = comparisons(ROWS, [("a", "none"), ("b", "none")])
    assert a.difference.high - 2 == pytest.approx(6.20535 / 3**0.5, rel=1e-5)
    assert b.seeds == 2
    assert (b.difference.low, b.difference.high) == pytest.approx((-0.1, -0.1))


def test_rank_correlation() -> None:
    """Check 1 − 6·Σd²/(n(n² − 1)) without ties: ranks 1 2 3 4 and 2 1 4 3, Σd² = 4, so 0.6. A tie shares its rank."""
    assert rank_correlation([1, 2, 3, 4], [20, 10, 40, 30]) == pytest.approx(0.6)
    assert rank_correlation([1, 1, 2], [1, 1, 5]) == pytest.approx(1)


def test_whether_eta_predicted_the_order() -> None:
    """Check the same order, and the opposite order; an arm that was not trained does not count."""
    rows = [
        row
        for arm, reward in enumerate((0.1, 0.2, 0.3, 0.4))
        for seed in (0, 1)
        for row in trained(str(arm), seed, reward)
    ]
    eta = {"0": 0.1, "1": 0.3, "2": 0.5, "3": 0.9, "other": 0.0}
    assert (progress_correlation(eta, rows).value, progress_correlation(eta, rows).low) == pytest.approx((1, 1))
    turned = {arm: -value for arm, value in eta.items()}
    assert progress_correlation(turned, rows).value == pytest.approx(-1)
