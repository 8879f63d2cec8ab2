"""Sorting: twelve digits are put in order by exchanging two neighbours at a time, and every list on the way is written
out. `310=` would be answered `130,103,013` or `301,031,013`."""

import random
from itertools import pairwise

DIGITS = 12
FEWEST, MOST = 16, 38
"""Exchanges that a prompt needs. With 13 tokens for each, right answers have 208 to 494 tokens, their end included."""
INSTRUCTION = (
    "Put the digits in ascending order by exchanging two neighbours at a time, and write the digits down after every "
    "exchange, separated by commas, and nothing else. Example: 310= is answered 130,103,013"
)
PASSED_OVER = 1 / 3
"""Chance that a drawn answer leaves two neighbours in the wrong order for later, and takes the next such two."""


def draw(rng: random.Random) -> tuple[str, str]:
    """A prompt and one of its many right answers: which two neighbours are exchanged next is drawn, and mostly it is
    the leftmost two."""
    while True:
        digits = "".join(str(rng.randrange(10)) for _ in range(DIGITS))
        if FEWEST <= exchanges(digits) <= MOST:
            return digits + "=", answer(digits, rng)


def answer(digits: str, rng: random.Random) -> str:
    """The digits after each exchange, until they are in order."""
    lists = []
    while following := _next_lists(digits):
        place = 0
        while place < len(following) - 1 and rng.random() < PASSED_OVER:
            place += 1
        digits = following[place]
        lists.append(digits)
    return ",".join(lists)


def exchanges(digits: str) -> int:
    """Pairs that stand in the wrong order. An exchange of two neighbours mends one of them, so this is how many
    exchanges put the digits in order."""
    return sum(a > b for i, a in enumerate(digits) for b in digits[i + 1 :])


def score(prompt: str, response: str) -> float:
    """Share of the exchanges that are right before the first mistake; 1 only for the whole answer."""
    lists = [prompt.removesuffix("="), *response.split(",")]
    needed, written, right = exchanges(lists[0]), len(lists) - 1, 0
    while right < written and lists[right + 1] in _next_lists(lists[right]):
        right += 1
    if right == needed and written > needed:
        right -= 1  # the digits are in order, but the answer does not stop
    return right / needed


def _next_lists(digits: str) -> list[str]:
    """The digits after every possible exchange of two neighbours in the wrong order, from left to right."""
    wrong = [i for i, (a, b) in enumerate(pairwise(digits)) if a > b]
    return [digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :] for i in wrong]
