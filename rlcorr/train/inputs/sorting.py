"""Sorting: put twelve digits in order by exchanging two neighbours at a time, and write the list after every exchange.

For three digits, right answers to `310=` would be `130,103,013` and `301,031,013`.
"""

import random
from itertools import pairwise

DIGITS = 12
FEWEST, MOST = 16, 38
"""Smallest and largest number of exchanges of a prompt. An exchange takes 13 tokens, so right answers have 208 to 494
tokens, <eos> included."""
INSTRUCTION = (
    "Put the digits in ascending order by exchanging two neighbours at a time, and write the digits down after every "
    "exchange, separated by commas, and nothing else. Example: 310= is answered 130,103,013"
)
PASSED_OVER = 1 / 3
"""Probability that a drawn answer passes over two neighbours in the wrong order and considers the next such two."""


def draw(rng: random.Random) -> tuple[str, str]:
    """Draw a prompt and one of its many right answers. Each exchange is drawn, too; mostly it is the leftmost one."""
    while True:
        digits = "".join(str(rng.randrange(10)) for _ in range(DIGITS))
        if FEWEST <= exchanges(digits) <= MOST:
            return digits + "=", answer(digits, rng)


def answer(digits: str, rng: random.Random) -> str:
    """Return the digits after each exchange, until they are in order."""
    lists = []
    while candidates := _next_lists(digits):
        index = 0
        while index < len(candidates) - 1 and rng.random() < PASSED_OVER:
            index += 1
        digits = candidates[index]
        lists.append(digits)
    return ",".join(lists)


def exchanges(digits: str) -> int:
    """Count the pairs of digits in the wrong order.

    An exchange of two neighbours removes one such pair, so this is the number of exchanges that sort the digits.
    """
    return sum(a > b for i, a in enumerate(digits) for b in digits[i + 1 :])


def score(prompt: str, response: str) -> float:
    """Return the share of the exchanges that are right before the first mistake; 1 only for a complete answer."""
    lists = [prompt.removesuffix("="), *response.split(",")]
    needed, written, right = exchanges(lists[0]), len(lists) - 1, 0
    while right < written and lists[right + 1] in _next_lists(lists[right]):
        right += 1
    if right == needed and written > needed:
        right -= 1  # the digits are in order, but the answer does not stop
    return right / needed


def _next_lists(digits: str) -> list[str]:
    """Return the digits after every possible exchange of two neighbours in the wrong order, from left to right."""
    wrong = [i for i, (a, b) in enumerate(pairwise(digits)) if a > b]
    return [digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :] for i in wrong]
