"""A dataset of the package reasoning-gym as a task: a hundred kinds of generated questions, judged by the package.

The task is one string: `reasoning_gym:chain_sum,min_terms=2,max_terms=2`. The options are those of the dataset's own
configuration. The package is an optional extra of this project, and its import takes two seconds or more, so only
`gym_task` imports it.
"""

import functools
import importlib
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rlcorr.errors import UsageError, first_line, unknown
from rlcorr.train.inputs.tasks import Example, Task, is_held_out

GYM = "reasoning_gym"
INSTRUCTION = "Reply with the answer only."
"""Text after every question and an empty line. A chat model gets it in the same user message as the question."""

CHUNK = 1_000
"""Number of questions of one dataset object. The next object has another seed. Among the first so many there must be
one for training and one for evaluation."""

# Measured by drawing from every dataset of version 0.1.25 in several processes.
UNREPEATABLE = {"codeio", "list_functions"}
"""Datasets that draw different questions each time, whatever their seed is."""
HASH_ORDERED = {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
"""Datasets that draw from sets of strings. Their order differs between processes unless PYTHONHASHSEED is fixed."""


def is_gym(task: str) -> bool:
    """Check whether a task is a dataset of reasoning-gym."""
    return task.partition(":")[0] == GYM


def parse_task(task: str) -> tuple[str, dict[str, Any]]:
    """Return the dataset and the options in a task's name. This does not import the package.

    A value is a number, true, false or a text; | separates the items of a list.

    >>> parse_task("reasoning_gym:basic_arithmetic,max_terms=3,operators=+|-")
    ('basic_arithmetic', {'max_terms': 3, 'operators': ['+', '-']})

    Raises:
        UsageError: without a dataset, or if an option has no value.
    """
    dataset, *words = [word.strip() for word in task.partition(":")[2].split(",")]
    if not dataset or "=" in dataset:
        raise UsageError(f"task {GYM} needs the name of a dataset, as in {GYM}:chain_sum; got {task!r}.")
    options: dict[str, Any] = {}
    for word in words:
        option, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise UsageError(f"an option of {GYM}:{dataset} is written option=value; got {word!r}.")
        options[option] = [_value(item) for item in text.split("|")] if "|" in text else _value(text)
    return dataset, options


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def gym_task(name: str, max_tokens: int) -> Task:
    """Make the task of a name such as "reasoning_gym:chain_sum,min_terms=2".

    `INSTRUCTION` follows every question, and `Example.extra` is the dataset's entry. The reward is the package's
    `score_answer` of the response without the white space around it. It is 1 for the right answer and mostly 0 for
    others; some datasets give a part of 1, for example if the right answer is among other words.

    Raises:
        UsageError: if the package is not installed, if it has no such dataset or option, if it refuses a value, or if
            there are too few different questions to hold some out.
    """
    dataset, options = parse_task(name)
    datasets = _datasets()
    if dataset not in datasets:
        raise unknown("dataset of reasoning-gym", dataset, datasets)
    _require_repeatable(dataset)
    dataset_type, config_type = datasets[dataset]

    def new(seed: int) -> Any:
        return dataset_type(config=config_type(seed=seed, size=CHUNK, **options))  # validates the configuration

    stream = partial(_stream, new)
    try:
        judge = new(0)
        sides = (is_held_out(example.prompt) for example in itertools.islice(stream(random.Random(0)), CHUNK))
        first = next(sides)
        both = any(side != first for side in sides)
    except Exception as error:  # mostly AssertionError; also errors of drawing with a value that makes no sense
        raise UsageError(f"{name}: reasoning-gym refuses it: {first_line(error).rstrip('.')}.") from error
    if not both:
        raise UsageError(f"{name} has too few different questions to hold out one in eight for evaluation.")
    return Task(name, stream, partial(_score, judge), max_tokens)


def _datasets() -> dict[str, tuple[type, type]]:
    """Return every dataset's class and the class of its configuration."""
    try:
        importlib.import_module("reasoning_gym")  # registers the datasets
        return importlib.import_module("reasoning_gym.factory").DATASETS
    except ImportError as error:
        raise UsageError(
            f"task {GYM} needs the package reasoning-gym, which cannot be imported ({error}): "
            "pip install --no-deps -r requirements/gym.txt."
        ) from error


def _require_repeatable(dataset: str) -> None:
    """Raise `UsageError` if this process cannot repeat the dataset's questions.

    A run on such questions could not be resumed, nor split over ranks.
    """
    if dataset in UNREPEATABLE:
        raise UsageError(f"{GYM}:{dataset} draws different questions each time, whatever the seed: choose another one.")
    if dataset in HASH_ORDERED and os.environ.get("PYTHONHASHSEED") != "0":
        raise UsageError(
            f"{GYM}:{dataset} draws different questions in every process: set PYTHONHASHSEED=0 to repeat them."
        )


def _stream(new: Callable[[int], Any], rng: random.Random) -> Iterator[Example]:
    """Yield questions without end."""
    while True:
        dataset = new(rng.randrange(2**31))
        for index in range(CHUNK):
            entry = dataset[index]
            yield Example(f"{entry['question'].strip()}\n\n{INSTRUCTION}", str(entry["answer"] or ""), entry)


def _score(judge: Any, example: Example, response: str) -> float:
    """Return the package's score of a response, and 0 if it raises, as some datasets do for a malformed answer."""
    try:
        return float(judge.score_answer(response.strip(), example.extra))
    except Exception as error:  # foreign code: no error in it may end the training run
        _print_once(f"{GYM}: an answer gets 0, because the scorer raised {type(error).__name__}: {error}")
        return 0.0


@functools.cache
def _print_once(sentence: str) -> None:
    print(sentence, flush=True)
