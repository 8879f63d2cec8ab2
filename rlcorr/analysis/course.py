"""A metric over a training, in two numbers."""

from collections.abc import Sequence

STEPS = 10


def ends(values: Sequence[float | None]) -> tuple[float, float, int] | None:
    """The mean of the first and of the last steps of a training, and of how many: ten, or a third of them where there
    are fewer than thirty. None for fewer than three steps that have a number.

    >>> ends([1.0, None, 2.0, 4.0])
    (1.0, 4.0, 1)
    """
    numbers = [value for value in values if value is not None]
    count = min(STEPS, len(numbers) // 3)
    return (sum(numbers[:count]) / count, sum(numbers[-count:]) / count, count) if count else None
