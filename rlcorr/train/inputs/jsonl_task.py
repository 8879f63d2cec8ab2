"""The user's own task: prompts in a JSON Lines file, judged by their answers or by a Python function.

Each line is an object. "prompt" is a text or a list of {"role", "content"} messages. "answer" is a text; it may be
missing if there is a reward function. Further keys are kept in `Example.extra`. A reward function is called as
`function(prompt, response, answer)` and returns a number, or None for a response that it cannot judge. `Task.reward`
does not catch its errors.
"""

import importlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rlcorr.errors import UsageError
from rlcorr.train.inputs.tasks import Example, Prompt, Stream, Task, is_held_out, passes, prompt_text

RewardFunction = Callable[[Prompt, str, str], float | None]

MOST_RAISED = 3
"""Number of errors of one class that reach the caller, which prints them. A wrong function raises one per answer."""


def jsonl_task(data: Path, *, reward: str = "", eval_data: Path | None = None, max_tokens: int) -> Task:
    """Make a task from a file of prompts.

    Args:
        data: the file. Without `eval_data`, one line in eight of it is held out.
        reward: "package.module:function"; empty: a response must equal the answer, except for spaces around it.
        eval_data: a file of held-out prompts.
        max_tokens: largest length of a response.

    Raises:
        UsageError: if a file or the reward function cannot be used.
    """
    judge = _same_text if not reward else _judged_by(load_reward(reward), reward)
    lines = read_examples(data, needs_answer=not reward)
    if eval_data is None:
        train, held_out = _split(data, lines)
    else:
        train, held_out = lines, read_examples(eval_data, needs_answer=not reward)
        _refuse_shared(data, train, eval_data, held_out)
    return Task("jsonl", passes(train), judge, max_tokens, held_out=_one_pass(held_out), prompts=len(train))


def read_examples(path: Path, *, needs_answer: bool) -> list[Example]:
    """Read the examples of a file; empty lines are skipped. Raises `UsageError` with the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise UsageError(f'{path} has no lines; each must be an object like {{"prompt": "1+1=", "answer": "2"}}.')
    return [_example(line, f"{path}, line {number}", needs_answer) for number, line in numbered]


def load_reward(path: str) -> RewardFunction:
    """Import the function "package.module:function", also from the current directory. Raises `UsageError`."""
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name or module_name.startswith("."):
        raise UsageError(f"reward must be package.module:function; got {path!r}.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"reward {path!r} cannot be imported: {error}.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"reward {path!r}: module {module_name} has no function {function_name}.")
    return cast(RewardFunction, function)


def _example(line: str, where: str, needs_answer: bool) -> Example:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is valid JSON, but cannot be encoded
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: must be an object with a prompt; got {line.strip()[:40]}.")
    if "prompt" not in row:
        raise UsageError(f"{where}: has no prompt; its keys are: {', '.join(row) or 'none'}.")
    if needs_answer and "answer" not in row:
        raise UsageError(f"{where}: has no answer; give one, or a reward function.")
    prompt, answer = row.pop("prompt"), row.pop("answer", "")
    if not _is_prompt(prompt):
        raise UsageError(f"{where}: prompt must be a text or a list of {{role, content}} texts; got {prompt!r:.60}.")
    if not isinstance(answer, str):
        raise UsageError(f"{where}: answer must be a text; got {answer!r:.60}.")
    return Example(prompt, answer, row)


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return isinstance(prompt, list) and bool(prompt) and all(map(_is_message, prompt))


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and all(isinstance(text, str) for text in message.values())
    )


def _split(data: Path, lines: list[Example]) -> tuple[list[Example], list[Example]]:
    train = [example for example in lines if not is_held_out(example.prompt)]
    held_out = [example for example in lines if is_held_out(example.prompt)]
    if not train or not held_out:
        purpose = "evaluate" if train else "train"
        raise UsageError(
            f"{data}: holding out one line in eight of {len(lines)} leaves none to {purpose}; give eval_data."
        )
    return train, held_out


def _refuse_shared(data: Path, train: list[Example], eval_data: Path, held_out: list[Example]) -> None:
    trained = {prompt_text(example.prompt) for example in train}
    shared = [example.prompt for example in held_out if prompt_text(example.prompt) in trained]
    if shared:
        raise UsageError(
            f"{eval_data} contains {len(shared)} of the prompts of {data}, the first is {shared[0]!r:.60}: "
            "held-out prompts must not be trained on."
        )


def _one_pass(lines: list[Example]) -> Stream:
    return lambda rng: iter(rng.sample(lines, len(lines)))


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
