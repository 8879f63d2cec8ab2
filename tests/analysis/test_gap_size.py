"""The size of a gap against sums worked out by hand, and sums of parts against the sum of the whole."""

import math

import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.analysis.gap_size import GapSize, averages, gap_size, total_size

D = [[math.log(1.0005), math.log(0.995), 9.0], [math.log(1.04), math.log(1.06), math.log(0.9)]]
"""Log-ratios of two answers, of two and of three tokens."""


def batch(d: list[list[float]], mask: list[list[int]]) -> TokenBatch:
    rollout = torch.full((len(d), len(d[0])), -1.0, dtype=torch.float64)
    return TokenBatch(torch.tensor(mask).bool(), rollout, rollout + torch.tensor(d, dtype=torch.float64))


def test_it_is_that_of_two_answers_worked_out_by_hand() -> None:
    size = gap_size(batch(D, [[1, 1, 0], [1, 1, 1]]))
    ratios = [1.0005, 0.995, 1.04, 1.06, 0.9]
    assert size is not None
    assert (size.tokens, size.answers) == (5, 2)
    assert size.k3 == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 5)
    assert size.abs == pytest.approx(sum(abs(math.log(r)) for r in ratios) / 5)
    # The geometric means are 0.99775 and (1.04 · 1.06 · 0.9)^(1/3) = 0.99738.
    assert size.shares_within() == [(0.001, 1 / 5, 0.0), (0.01, 2 / 5, 1.0), (0.05, 3 / 5, 1.0)]


def test_tokens_without_two_finite_log_probs_are_left_out() -> None:
    whole = batch(D, [[1, 1, 0], [1, 1, 1]])
    holes = batch([*D, [math.nan] * 3], [[1, 1, 0], [1, 1, 1], [1, 1, 1]])
    assert gap_size(holes) == gap_size(whole)
    assert gap_size(batch([[math.nan, -math.inf]], [[1, 1]])) is None


def test_the_parts_of_a_run_add_up() -> None:
    whole = gap_size(batch(D, [[1, 1, 0], [1, 1, 1]]))
    parts = total_size([gap_size(batch(D[:1], [[1, 1, 0]])), None, gap_size(batch(D[1:], [[1, 1, 1]]))])
    assert isinstance(whole, GapSize)
    assert isinstance(parts, GapSize)
    assert (parts.k3, parts.abs) == pytest.approx((whole.k3, whole.abs))
    assert parts.shares_within() == whole.shares_within()
    assert total_size([None]) is None


def test_averages_that_few_tokens_cannot_move() -> None:
    """A hundred log-ratios 0.01, 0.02 … 0.99 and 5: the trimmed mean leaves out the last one, 1 % of the tokens."""
    d = [0.01 * k for k in range(1, 100)] + [5.0]
    one = averages(batch([d], [[1] * 100]), [(0, 98)])  # the named token is the 99th, 0.99
    assert one["abs_log_ratio"].mean == pytest.approx(sum(d) / 100)
    assert one["abs_log_ratio"].without == pytest.approx((sum(d) - 0.99) / 99)
    assert one["abs_log_ratio"].trimmed == pytest.approx(sum(d[:-1]) / 99)
    assert one["abs_log_ratio"].median == pytest.approx(0.5)  # torch takes the lower of the two in the middle
    assert one["k3"].trimmed == pytest.approx(sum(math.exp(x) - 1 - x for x in d[:-1]) / 99)
    assert one["mean_ratio"].mean == pytest.approx(sum(map(math.exp, d)) / 100)
    assert one["mult_error"].mean == pytest.approx(one["mean_ratio"].mean)  # every log-ratio is above 0
