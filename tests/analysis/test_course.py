import pytest

from rlcorr.analysis.course import ends


def test_ten_steps_at_each_end() -> None:
    """0 to 59: the first ten have the mean 4.5, the last ten 54.5."""
    assert ends([float(step) for step in range(60)]) == (4.5, 54.5, 10)


def test_a_third_of_a_short_training() -> None:
    assert ends([1.0, 3.0, 7.0, 8.0, 9.0, 11.0, 13.0]) == (2.0, 12.0, 2)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [None, None, 3.0, 4.0]])
def test_too_few_steps(values: list[float | None]) -> None:
    assert ends(values) is None
