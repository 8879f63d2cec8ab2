"""A dataset of the package reasoning-gym as a task: a hundred kinds of generated questions, judged by the package.

The task is one string: `reasoning_gym:chain_sum,min_terms=2,max_terms=2`. The options are those of the dataset's own
configuration. The package is an optional extra of this project, and importing it takes two seconds or more, so that
only `gym_task` does so.
"""

import enum
import functools
import importlib
import itertools
import os
import random
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from rlcorr.errors import UsageError, first_line, unknown
from rlcorr.train.inputs.tasks import Example, Task, is_held_out

GYM = "reasoning_gym"
INSTRUCTION = "Reply with the answer only."
"""Follows every question, after an empty line: a chat model is told in its user turn what to write."""

CHUNK = 1_000
"""Questions that one dataset object gives before the next one is made, with another seed."""

DRAWN = 1_000
"""Among so many questions, both training and evaluation must have one."""

OURS = ("seed", "size")
"""Fields of every configuration that the stream sets."""

# Found by drawing from every dataset of version 0.1.25 in several processes.
UNREPEATABLE = {"codeio", "list_functions"}
"""Datasets that draw other questions each time, whatever their seed is."""
HASH_ORDERED = {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
"""Datasets that draw from sets of texts, whose order is another one in every process unless PYTHONHASHSEED is fixed."""

Options = dict[str, Any]


def is_gym(task: str) -> bool:
    """Return whether a task's name means a dataset of reasoning-gym."""
    return task.partition(":")[0] == GYM


def parse_task(task: str) -> tuple[str, dict[str, str]]:
    """Return the dataset and the options that a task's name holds, as texts. Does not import the package.

    >>> parse_task("reasoning_gym:chain_sum,min_terms=2,max_terms=3")
    ('chain_sum', {'min_terms': '2', 'max_terms': '3'})

    Raises:
        UsageError: without a dataset, or if an option has no value or is given twice.
    """
    dataset, *words = [word.strip() for word in task.partition(":")[2].split(",")]
    if not dataset or "=" in dataset:
        raise UsageError(f"task {GYM} needs the name of a dataset, as in {GYM}:chain_sum; got {task!r}.")
    options: dict[str, str] = {}
    for word in words:
        option, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not option:
            raise UsageError(f"an option of {GYM}:{dataset} is written option=value; got {word!r}.")
        if option in options:
            raise UsageError(f"option {option} of {GYM}:{dataset} is given twice.")
        options[option] = value
    return dataset, options


def gym_task(name: str, max_tokens: int) -> Task:
    """Return the task that a name such as "reasoning_gym:chain_sum,min_terms=2" means.

    A question is followed by `INSTRUCTION`, and `Example.extra` holds the dataset's entry. The reward is the package's
    `score_answer` of the response without the white space around it: 1 for the right answer, mostly 0 for others, and
    with some datasets a part of 1, for example for a right answer among other words.

    Raises:
        UsageError: if the package is not installed, if it has no such dataset or option, if it refuses a value, or if
            there are too few different questions to hold some out.
    """
    dataset, texts = parse_task(name)
    known_datasets = _datasets()
    if dataset not in known_datasets:
        raise unknown("dataset of reasoning-gym", dataset, known_datasets)
    _require_repeatable(dataset)
    dataset_type, config_type = known_datasets[dataset]
    options = _options(dataset, texts, config_type)

    def new(seed: int) -> Any:
        return dataset_type(config=config_type(seed=seed, size=CHUNK, **options))  # which validates the configuration

    stream = partial(_stream, new)
    try:
        judge = new(0)
        sides = _sides(stream)
    except Exception as error:  # mostly AssertionError; also what drawing with a value of no sense raises
        raise UsageError(f"{name}: reasoning-gym refuses it: {first_line(error).rstrip('.')}.") from error
    if len(sides) == 1:
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
    """Refuse a dataset whose questions this process cannot repeat: no run on it could be resumed or shared by ranks."""
    if dataset in UNREPEATABLE:
        raise UsageError(f"{GYM}:{dataset} draws other questions each time, whatever the seed: choose another one.")
    if dataset in HASH_ORDERED and os.environ.get("PYTHONHASHSEED") != "0":
        raise UsageError(
            f"{GYM}:{dataset} draws other questions in every process: set PYTHONHASHSEED=0 to repeat them."
        )


def _options(dataset: str, texts: dict[str, str], config_type: type) -> Options:
    """Return the options as values of the types that the dataset's configuration declares."""
    declared = {name: hint for name, hint in typing.get_type_hints(config_type).items() if name not in OURS}
    for option in texts:
        if option not in declared:
            raise unknown(f"option of {GYM}:{dataset}", option, declared)
    return {option: _option(f"{GYM}:{dataset}", option, text, declared[option]) for option, text in texts.items()}


def _option(task: str, option: str, text: str, declared: Any) -> Any:
    kind = declared.__name__ if isinstance(declared, type) else str(declared).replace("typing.", "")
    try:
        return _value(text, declared)
    except ValueError as error:
        raise UsageError(f"option {option} of {task} must be of type {kind}; got {text!r}.") from error
    except TypeError as error:
        raise UsageError(f"option {option} of {task} is of type {kind}, which a task's name cannot hold.") from error


def _value(text: str, declared: Any) -> Any:
    """Return the value of a declared type that a text means; the items of a list are separated by |.

    Raises:
        ValueError: if the text is no such value.
        TypeError: if values of this type cannot be written as a text here.
    """
    kind = typing.get_origin(declared) or declared
    inner = [argument for argument in typing.get_args(declared) if argument not in (types.NoneType, Ellipsis)]
    if kind in (typing.Union, types.UnionType):  # Optional
        return _value(text, inner[0])
    if kind in (list, tuple, Sequence):
        items = [_value(item, inner[0] if inner else str) for item in text.split("|")]
        return tuple(items) if kind is tuple else items
    if kind in (bool, typing.Literal):
        allowed = {"true": True, "false": False} if kind is bool else {word: word for word in inner}
        if text not in allowed:
            raise ValueError
        return allowed[text]
    if kind in (int, float, str) or issubclass(kind, enum.Enum):
        return kind(text)
    raise TypeError


def _stream(new: Callable[[int], Any], rng: random.Random) -> Iterator[Example]:
    """Yield questions without end."""
    while True:
        dataset = new(rng.randrange(2**31))
        for index in range(CHUNK):
            entry = dataset[index]
            yield Example(f"{entry['question'].strip()}\n\n{INSTRUCTION}", str(entry["answer"] or ""), entry)


def _sides(stream: Callable[[random.Random], Iterator[Example]]) -> set[bool]:
    """Return {True, False} once there was a question that is held out and one that is not, in any order."""
    sides: set[bool] = set()
    for example in itertools.islice(stream(random.Random(0)), DRAWN):
        sides.add(is_held_out(example.prompt))
        if len(sides) == 2:
            break
    return sides


def _score(judge: Any, example: Example, response: str) -> float:
    """Return the package's score of a response; 0 if it raises, as some datasets do when an answer is malformed."""
    try:
        return float(judge.score_answer(response.strip(), example.extra))
    except Exception as error:  # somebody else's code: whatever it raises must not end the training
        _say_once(f"{GYM} scores an answer 0 where its own scorer raises {type(error).__name__}: {error}")
        return 0.0


@functools.cache
def _say_once(sentence: str) -> None:
    print(sentence, flush=True)
