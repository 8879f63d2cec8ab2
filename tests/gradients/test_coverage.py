"""Do intervals of 95 % hold the truth so often? In the toy, where it is known."""

import math
from functools import cache

import pytest
from toy_sketches import directions_of, sampled_sketch

from rlcorr.gradients import toy
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import compare
from rlcorr.presets import preset

pytestmark = pytest.mark.slow

NAMES = ("disabled", "decoupled_token_is", "decoupled_seq_is")
SIZES = (256, 4096)
CELLS = {(64, 256): 20, (256, 256): 12, (64, 2048): 12, (256, 2048): 6}
"""(directions, answers) → repetitions: a large one costs ten times as much as a small one."""
LEAST, MOST = 0.90, 0.99
SURE = 2.33
"""Standard deviations that are exceeded once in a hundred times."""


def intervals_and_truths(directions: int, answers: int, seed: int) -> dict[str, list[tuple[Interval, float]]]:
    """Of the relative bias and of η, one per preset and batch size, in directions of its own."""
    of = toy.small_world(0.5)
    batch, sketch = sampled_sketch(of, directions_of(of, directions, 1000 + seed), answers, seed)
    ranking = compare(batch, sketch, [preset(name) for name in NAMES], batch_sizes=SIZES, seed=seed)
    truths = [toy.gradient_truth(of.where, of.policies, of.advantages, preset(name)) for name in NAMES]
    both = list(zip(ranking.reports, truths, strict=True))
    bias = [(got.relative_bias, truth.relative_bias) for got, truth in both]
    eta = [(share, truth.progress(b)) for got, truth in both for b, share in zip(SIZES, got.progress, strict=True)]
    return {"bias": bias, "eta": eta}


@cache
def repetitions() -> list[dict[str, list[tuple[Interval, float]]]]:
    runs = [
        intervals_and_truths(*cell, 100 * number + repetition)
        for number, (cell, times) in enumerate(CELLS.items())
        for repetition in range(times)
    ]
    assert len(runs) == sum(CELLS.values())
    return runs


def holds(interval: Interval, truth: float, wide: float = 1.0) -> bool:
    """Whether the truth is inside an interval so many times as wide, each end moved towards the value."""
    low = interval.value - wide * (interval.value - interval.low)
    high = interval.value + wide * (interval.high - interval.value)
    return low - 1e-4 <= truth <= high + 1e-4


@pytest.mark.parametrize("number", ["bias", "eta"])
def test_the_intervals_are_wide_enough(number: str) -> None:
    """The share of n repetitions that holds is off by √(p (1 − p)/n); presets and batch sizes of one repetition share
    their answers and directions, so at worst they count once. With n = 50 and a coverage of 90 % that is 0.042, so of
    a right library less than 0.90 − 2.33 · 0.042 = 0.80 is seen once in a hundred times."""
    held = [holds(*pair) for repetition in repetitions() for pair in repetition[number]]
    off = SURE * math.sqrt(LEAST * (1 - LEAST) / len(repetitions()))
    assert sum(held) / len(held) >= LEAST - off


@pytest.mark.parametrize("number", ["bias", "eta"])
def test_the_intervals_are_no_wider_than_they_must_be(number: str) -> None:
    """Whether it is 99 % or more, 50 repetitions do not tell: all of them hold with a probability of 0.6. Halved
    intervals do. Of a normal estimate one of 99 % reaches 2.58 standard deviations, its half 1.29, which hold 80 %;
    that share is off by 0.057. The truths that are at an end of what is possible, a bias of nearly 0 and a share of
    nearly 1, are held by any interval, and are left out."""
    pairs = [pair for repetition in repetitions() for pair in repetition[number] if 0.05 < pair[1] < 0.95]
    halved = [holds(*pair, wide=0.5) for pair in pairs]
    assert len(halved) >= len(repetitions())
    within = math.erf(2.576 / 2 / math.sqrt(2))
    assert sum(halved) / len(halved) <= within + SURE * math.sqrt(within * (1 - within) / len(repetitions()))
