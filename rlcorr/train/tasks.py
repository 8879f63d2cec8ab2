"""Tasks with verifiable answers. Prompts are drawn from a seed; held-out prompts are never trained on."""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlcorr.errors import unknown

ALPHABET = "0123456789+-*/=(),"
"""Every character that a prompt or an answer may hold."""

HELD_OUT_SHARE = 8
"""One prompt in eight, chosen by a checksum of its text, is kept for evaluation."""


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """`draw` makes one example; `reward` judges a response, from 0 to 1; `max_tokens` fits every answer and its end."""

    name: str
    draw: Callable[[random.Random], Example]
    reward: Callable[[Example, str], float]
    max_tokens: int


def _draw_addition(rng: random.Random) -> Example:
    a, b = rng.randrange(100), rng.randrange(100)
    return Example(f"{a}+{b}=", str(a + b))


def _exact(example: Example, response: str) -> float:
    return float(response == example.answer)


RUNNING_SUM_TERMS = 20


def _draw_running_sum(rng: random.Random) -> Example:
    """Twenty digits, every partial sum written out: answers of about 50 to 65 tokens."""
    terms = [rng.randrange(10) for _ in range(RUNNING_SUM_TERMS)]
    sums = [sum(terms[: i + 1]) for i in range(len(terms))]
    return Example("+".join(map(str, terms)) + "=", ",".join(map(str, sums)))


def _correct_prefix(example: Example, response: str) -> float:
    """Share of the partial sums that are right before the first mistake; 1 only for the whole answer."""
    expected, got = example.answer.split(","), response.split(",")
    right = 0
    while right < len(expected) and right < len(got) and got[right] == expected[right]:
        right += 1
    if right == len(expected) and len(got) > len(expected):
        right -= 1  # the answer is there, but it does not stop
    return right / len(expected)


TASKS = {
    task.name: task
    for task in (
        Task("addition", _draw_addition, _exact, max_tokens=5),
        Task("running_sum", _draw_running_sum, _correct_prefix, max_tokens=80),
    )
}


def get_task(name: str) -> Task:
    """Raises `UsageError` with the nearest name."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def examples(task: Task, seed: int, *, held_out: bool = False) -> Iterator[Example]:
    """An endless stream of training prompts, or of held-out ones; the same seed gives the same stream."""
    rng = random.Random(f"{task.name}:{seed}")
    while True:
        example = task.draw(rng)
        if (zlib.crc32(example.prompt.encode()) % HELD_OUT_SHARE == 0) == held_out:
            yield example
