"""The user's own task: prompts in a JSON Lines file, judged by their answers or by a Python function.

Each line is an object. "prompt" is a text or a list of {"role", "content"} messages. "answer" is a text; it may be
missing if there is a reward function. Further keys are kept in `Example.extra`. A reward function is called as
`function(prompt, response, answer)` and returns a number, or None for a response that it cannot judge. `Task.reward`
does not catch its errors.
"""

import json
import math
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rlcorr.errors import UsageError
from rlcorr.train.inputs.tasks import Example, Prompt, Stream, Task, is_held_out, passes

RewardFunction = Callable[[Prompt, str, str], float | None]

MOST_RAISED = 3
"""Number of errors of one class that reach the caller, which prints them. A wrong function raises one per answer."""


def jsonl_task(data: Path, *, reward: str = "", max_tokens: int) -> Task:
    """Make a task from a file of prompts; one line in eight of it is held out.

    Args:
        data: the file.
        reward: "package.module:function"; empty: a response must equal the answer, except for spaces around it.
        max_tokens: largest length of a response.

    Raises:
        UsageError: if the file or the reward function cannot be used.
    """
    judge = _same_text if not reward else _judged_by(load_reward(reward), reward)
    lines = read_examples(data, needs_answer=not reward)
    train = [example for example in lines if not is_held_out(example.prompt)]
    held_out = [example for example in lines if is_held_out(example.prompt)]
    if not train or not held_out:
        purpose = "evaluate" if train else "train"
        raise UsageError(f"{data}: holding out one line in eight of {len(lines)} leaves none to {purpose}.")
    one_pass: Stream = lambda rng: iter(rng.sample(held_out, len(held_out)))  # noqa: E731
    return Task("jsonl", passes(train), judge, max_tokens, held_out=one_pass, prompts=len(train))


def read_examples(path: Path, *, needs_answer: bool) -> list[Example]:
    """Read the examples of a file; empty lines are skipped. Raises `UsageError` with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}.") from error
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise UsageError(f'{path} has no lines; each must be an object like {{"prompt": "1+1=", "answer": "2"}}.')
    return [_example(line, f"{path}, line {number}", needs_answer) for number, line in numbered]


def load_reward(path: str) -> RewardFunction:
    """Import the function "package.module:function", also from the current directory. Raises `UsageError`."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = pkgutil.resolve_name(path)
    except (Exception, SystemExit) as error:  # importing it runs the user's code
        plain = isinstance(error, ImportError | AttributeError | ValueError)  # their messages need no name
        why = error if plain else f"{type(error).__name__}: {error}"
        raise UsageError(f"reward {path!r} cannot be imported: {why}. Write package.module:function.") from error
    if not callable(function):
        raise UsageError(f"reward {path!r} is no function. Write package.module:function.")
    return cast(RewardFunction, function)


def _example(line: str, where: str, needs_answer: bool) -> Example:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}.") from error
    if not isinstance(row, dict) or "prompt" not in row:
        raise UsageError(f"{where}: must be an object with a prompt; got {line.strip()[:40]}.")
    if needs_answer and "answer" not in row:
        raise UsageError(f"{where}: has no answer; give one, or a reward function.")
    prompt, answer = row.pop("prompt"), row.pop("answer", "")
    if not _is_prompt(prompt):
        raise UsageError(f"{where}: prompt must be a text or a list of {{role, content}} texts; got {prompt!r:.60}.")
    if not isinstance(answer, str):
        raise UsageError(f"{where}: answer must be a text; got {answer!r:.60}.")
    return Example(prompt, answer, row)


def _is_prompt(prompt: Any) -> bool:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return bool(prompt) and isinstance(messages, list) and all(map(_is_message, messages))


def _is_message(message: Any) -> bool:
    texts = isinstance(message, dict) and all(isinstance(text, str) for text in message.values())
    return texts and message.keys() == {"role", "content"}


def _same_text(example: Example, response: str) -> float:
    return float(response.strip() == example.answer.strip())


def _judged_by(function: RewardFunction, name: str) -> Callable[[Example, str], float | None]:
    """Return the function as the reward of a task. After `MOST_RAISED` errors of a class it returns NaN for further."""
    raised: Counter[str] = Counter()

    def reward(example: Example, response: str) -> float | None:
        try:
            judgement = function(example.prompt, response, example.answer)
            return None if judgement is None else _finite(judgement, name)
        except Exception as error:  # user code: any error
            raised[type(error).__name__] += 1
            if raised[type(error).__name__] > MOST_RAISED:
                return math.nan
            raise

    return reward


def _finite(judgement: Any, name: str) -> float:
    """Return a reward. Raises `TypeError` or `ValueError`, which say what the function returned instead of a number."""
    try:
        value = float(judgement)
    except (TypeError, ValueError) as error:
        got = f"{judgement!r:.60} of type {type(judgement).__name__!r}"
        raise TypeError(f"reward {name} returned {got}; it must return a number or None") from error
    if not math.isfinite(value):
        raise ValueError(f"reward {name} returned {value}; it must be a finite number or None")
    return value
