"""Tasks with verifiable answers. Prompts are drawn from a seed; held-out prompts are never trained on."""

import itertools
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rlcorr.errors import UsageError, unknown
from rlcorr.train.inputs import countdown, sorting

ALPHABET = "0123456789+-*/=(),"
"""Every character that prompts and answers of the tasks in `TASKS` may contain."""

HELD_OUT_SHARE = 8
"""One prompt in eight, selected by a checksum of its text, is held out for evaluation."""

REPEATED = 10_000
"""After this many repeated prompts in a row, a task is assumed to have no further one."""

Prompt = str | list[dict[str, str]]
"""A text, or chat messages: {"role": ..., "content": ...}."""


@dataclass(frozen=True)
class Example:
    """A prompt and its right answer."""

    prompt: Prompt
    answer: str
    extra: dict[str, Any] = field(default_factory=dict)  # further keys of a line of the user's file


Stream = Callable[[random.Random], Iterator[Example]]


@dataclass(frozen=True)
class Task:
    """Prompts and their reward."""

    name: str
    stream: Stream
    """Yields examples without end."""
    reward: Callable[[Example, str], float | None]
    """Judges a response, from 0 to 1; None if it cannot judge it."""
    max_tokens: int
    """Length that fits every answer and its <eos>."""
    held_out: Stream | None = None
    """Yields the prompts for evaluation, and may end; None: one in eight of `stream` is held out."""
    prompts: int | None = None
    """Number of prompts, if the stream repeats the same ones; None: the stream draws new ones."""
    instruction: str = ""
    """Tells a chat model what to do with a prompt. Models without a chat template do not get it."""
    system_message: str = ""
    """Comes before the instruction. Models without a chat template do not get it."""


def _addition(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(100), rng.randrange(100)
    return f"{a}+{b}=", str(a + b)


def exact(example: Example, response: str) -> float:
    return float(response == example.answer)


RUNNING_SUM_TERMS = 20


def _running_sum(rng: random.Random) -> tuple[str, str]:
    """Draw a sum of twenty digits; the answer lists every partial sum, in about 50 to 65 tokens."""
    terms = [rng.randrange(10) for _ in range(RUNNING_SUM_TERMS)]
    return "+".join(map(str, terms)) + "=", ",".join(map(str, itertools.accumulate(terms)))


def _correct_prefix(example: Example, response: str) -> float:
    """Return the share of the partial sums that are right before the first mistake; 1 only for a complete answer."""
    expected, got = example.answer.split(","), response.split(",")
    right = 0
    while right < len(expected) and right < len(got) and got[right] == expected[right]:
        right += 1
    if right == len(expected) and len(got) > len(expected):
        right -= 1  # the sums are complete, but the answer does not stop
    return right / len(expected)


def _drawn(draw: Callable[[random.Random], tuple[str, str]]) -> Stream:
    """Return the stream of examples from a function that draws a prompt and an answer."""
    return lambda rng: (Example(*draw(rng)) for _ in itertools.count())


def _scored(score: Callable[[str, str], float]) -> Callable[[Example, str], float]:
    """Return the reward of a task from a function of a prompt and a response."""
    return lambda example, response: score(prompt_text(example.prompt), response)


ADD = "Answer with the sum, and nothing else. Example: 12+34= is answered 46"
ADD_UP = "Answer with all partial sums, separated by commas, and nothing else. Example: 3+4+1= is answered 3,7,8"


def names_number(example: Example, response: str) -> float:
    """Return 1 if the answer is one of the numbers in the response, else 0.

    A pretrained model writes "47 + 30 = 77" and continues; it hardly ever gives the number alone, or stops.
    """
    return float(example.answer in _numbers(response))


def ends_with_number(example: Example, response: str) -> float:
    """Return 1 if the last number in the response is the answer, else 0: an explanation contains many numbers."""
    return float(_numbers(response)[-1:] == [example.answer])


def _numbers(text: str) -> list[str]:
    """Return the numbers in a text, in order; 1,000 and 1000 are the same."""
    return [number.replace(",", "") for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", text)]


def _sum_questions(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(1, 100), rng.randrange(1, 100)
    return f"Compute {a} + {b}. Reply with the number only.", str(a + b)


def _explained_products(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(2, 13), rng.randrange(2, 13)
    return f"What is {a} × {b}? Explain each step, then give the answer.", str(a * b)


QUESTIONS = {
    task.name: task
    for task in (
        Task("sum_questions", _drawn(_sum_questions), names_number, max_tokens=24),
        Task("explained_products", _drawn(_explained_products), ends_with_number, max_tokens=200),
    )
}
"""The built-in tasks in words, for models that read English."""

TASKS = {
    task.name: task
    for task in (
        Task("addition", _drawn(_addition), exact, max_tokens=5, instruction=ADD),
        Task("running_sum", _drawn(_running_sum), _correct_prefix, max_tokens=80, instruction=ADD_UP),
        Task(
            "countdown",
            _drawn(countdown.draw),
            _scored(countdown.score),
            max_tokens=16,
            instruction=countdown.INSTRUCTION,
        ),
        Task("sorting", _drawn(sorting.draw), _scored(sorting.score), max_tokens=494, instruction=sorting.INSTRUCTION),
    )
}
"""The built-in tasks in the characters of `ALPHABET`. The task jsonl is made by `jsonl_task` from the user's file."""


def built_in() -> dict[str, Task]:
    """Return every built-in task by name."""
    return TASKS | QUESTIONS


def get_task(name: str) -> Task:
    """Return a built-in task. Raises `UsageError` with the nearest name if there is none of this name."""
    if name not in built_in():
        raise unknown("task", name, built_in())
    return built_in()[name]


def examples(task: Task, seed: int, *, held_out: bool = False) -> Iterator[Example]:
    """Return training prompts without end, or held-out prompts; the same seed gives the same stream."""
    rng = random.Random(f"{task.name}:{seed}")
    if task.held_out is not None:
        return task.held_out(rng) if held_out else task.stream(rng)
    return (example for example in task.stream(rng) if is_held_out(example.prompt) == held_out)


def with_prompts(task: Task, count: int, seed: int) -> Task:
    """Return the task with only the first `count` different training prompts; held-out prompts stay the same.

    Raises `UsageError` if the task has fewer prompts.
    """
    by_text: dict[str, Example] = {}
    repeated = 0
    for example in examples(task, seed):
        repeated = repeated + 1 if prompt_text(example.prompt) in by_text else 0
        by_text.setdefault(prompt_text(example.prompt), example)
        if len(by_text) == count:
            break
        if repeated == REPEATED:
            raise UsageError(f"train_prompts is {count:,}, but task {task.name} has only {len(by_text):,} to train on.")
    held_out = task.held_out or (lambda rng: filter(lambda example: is_held_out(example.prompt), task.stream(rng)))
    return replace(task, stream=passes(list(by_text.values())), held_out=held_out, prompts=count)


def passes(lines: list[Example]) -> Stream:
    """Return a stream of passes over all lines without end, each pass in another order."""

    return lambda rng: (line for _ in itertools.count() for line in rng.sample(lines, len(lines)))


def is_held_out(prompt: Prompt) -> bool:
    return zlib.crc32(prompt_text(prompt).encode()) % HELD_OUT_SHARE == 0


def prompt_text(prompt: Prompt) -> str:
    """Return a prompt as one string, for records and comparisons: a text as it is, messages as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
