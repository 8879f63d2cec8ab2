"""A sentence that compares stops where its interval does not carry it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlcorr.gradients.bootstrap import Interval

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"


@pytest.fixture(scope="module")
def sentences() -> ModuleType:
    if str(LESSONS) not in sys.path:
        sys.path.insert(0, str(LESSONS))
    return importlib.import_module("sentences")


def test_an_interval_that_carries_a_comparison_is_written_out(sentences: ModuleType) -> None:
    assert sentences.above(Interval(1.234, 1.1, 1.4), 1) == "1.23 [1.10, 1.40]"
    assert sentences.below(Interval(-0.5, -0.7, -0.001), digits=3) == "-0.500 [-0.700, -0.001]"
    assert sentences.untold(Interval(0.2, -0.1, 0.5)) == "0.20 [-0.10, 0.50]"


@pytest.mark.parametrize(
    ("verb", "interval"),
    [
        ("above", Interval(0.2, 0.0, 0.5)),
        ("below", Interval(-0.2, -0.5, 0.0)),
        ("untold", Interval(0.2, 0.1, 0.5)),
        ("untold", Interval(-0.2, -0.3, -0.1)),
    ],
)
def test_an_interval_that_does_not_stops_the_lesson(sentences: ModuleType, verb: str, interval: Interval) -> None:
    with pytest.raises(AssertionError):
        getattr(sentences, verb)(interval)
