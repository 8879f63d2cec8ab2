"""A dataset of the package reasoning-gym as a task: a hundred kinds of generated questions, judged by the package.

The task is one string: `reasoning_gym:chain_sum,min_terms=2,max_terms=2`. The options are those of the dataset's own
configuration. The package is an optional extra of this project, and its import takes two seconds or more, so only
`gym_task` imports it.
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
"""Text after every question and an empty line. A chat model gets it in the same user message as the question."""

CHUNK = 1_000
"""Number of questions of one dataset object. The next object has another seed."""

DRAWN = 1_000
"""Among this many questions there must be one for training and one for evaluation."""

OURS = ("seed", "size")
"""Fields of every dataset's configuration that the stream sets, so that they are no options of the task."""

# Measured by drawing from every dataset of version 0.1.25 in several processes.
UNREPEATABLE = {"codeio", "list_functions"}
"""Datasets that draw different questions each time, whatever their seed is."""
HASH_ORDERED = {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
"""Datasets that draw from sets of strings. Their order differs between processes unless PYTHONHASHSEED is fixed."""

Options = dict[str, Any]


def is_gym(task: str) -> bool:
    """Check whether a task is a dataset of reasoning-gym."""
    return task.partition(":")[0] == GYM


def parse_task(task: str) -> tuple[str, dict[str, str]]:
    """Return the dataset and the options in a task's name, as texts. This does not import the package.

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
    """Make the task of a name such as "reasoning_gym:chain_sum,min_terms=2".

    `INSTRUCTION` follows every question, and `Example.extra` is the dataset's entry. The reward is the package's
    `score_answer` of the response without the white space around it. It is 1 for the right answer and mostly 0 for
    others; some datasets give a part of 1, for example if the right answer is among other words.

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
        return dataset_type(config=config_type(seed=seed, size=CHUNK, **options))  # validates the configuration

    stream = partial(_stream, new)
    try:
        judge = new(0)
        splits = _splits(stream)
    except Exception as error:  # mostly AssertionError; also errors of drawing with a value that makes no sense
        raise UsageError(f"{name}: reasoning-gym refuses it: {first_line(error).rstrip('.')}.") from error
    if len(splits) == 1:
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
    """Convert a text to a value of the declared type; the items of a list are separated by |.

    Raises:
        ValueError: if the text is not a value of this type.
        TypeError: if this type is not supported.
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


def _splits(stream: Callable[[random.Random], Iterator[Example]]) -> set[bool]:
    """Return the splits that have a question: True (held out), False (for training), or both."""
    splits: set[bool] = set()
    for example in itertools.islice(stream(random.Random(0)), DRAWN):
        splits.add(is_held_out(example.prompt))
        if len(splits) == 2:
            break
    return splits


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
