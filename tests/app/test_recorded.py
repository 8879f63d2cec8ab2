"""The first and the last steps of a run, in two numbers."""

import pytest
from app_pages import committed

__all__ = ["committed"]  # a fixture

CASES = {
    "ten steps at each end: 0 to 59 begin with the mean 4.5 and end with 54.5": (list(range(60)), (4.5, 54.5, 10)),
    "a third of a short run": ([1.0, 3.0, 7.0, 8.0, 9.0, 11.0, 13.0], (2.0, 12.0, 2)),
    "steps without a value are skipped": ([1.0, None, 2.0, 4.0], (1.0, 4.0, 1)),
    "no steps": ([], None),
    "too few": ([1.0, 2.0], None),
    "too few values": ([None, None, 3.0, 4.0], None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_and_the_last_steps(committed: None, case: str) -> None:
    from data import recorded

    values, expected = CASES[case]
    assert recorded.first_and_last(values) == expected
