"""A file of one's own as a task: what it draws, how it judges, and what it says about mistakes."""

import itertools
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlcorr.errors import UsageError
from rlcorr.train.inputs.jsonl_task import jsonl_task, load_reward, read_examples
from rlcorr.train.inputs.tasks import Example, Task, examples, prompt_text

HELLO = {"role": "user", "content": "hello"}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", [{"prompt": f"{n}+1=", "answer": str(n + 1), "level": n} for n in range(100)])


def drawn(task: Task, count: int, seed: int = 0, held_out: bool = False) -> list[str]:
    return [prompt_text(e.prompt) for e in itertools.islice(examples(task, seed, held_out=held_out), count)]


def test_every_line_is_trained_on_or_held_out(data: Path) -> None:
    task = jsonl_task(data, max_tokens=4)
    held_out = drawn(task, 1000, held_out=True)
    train = drawn(task, 100 - len(held_out))
    assert sorted(train + held_out) == sorted(f"{n}+1=" for n in range(100))
    assert 5 <= len(held_out) <= 20  # one in eight of 100 is 12.5
    assert task.prompts == 100 - len(held_out)


def test_training_goes_over_the_file_in_a_new_order_each_time(data: Path, tmp_path: Path) -> None:
    task = jsonl_task(data, eval_data=write(tmp_path / "eval.jsonl", [{"prompt": "x", "answer": "y"}]), max_tokens=4)
    prompts = drawn(task, 300)
    passes = [prompts[:100], prompts[100:200], prompts[200:]]
    assert all(set(Counter(one).values()) == {1} and len(set(one)) == 100 for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert prompts == drawn(task, 300)
    assert prompts != drawn(task, 300, seed=1)


def test_held_out_prompts_come_from_their_own_file_once(data: Path, tmp_path: Path) -> None:
    held_out = write(tmp_path / "eval.jsonl", [{"prompt": f"{n}-1=", "answer": "?"} for n in range(30)])
    task = jsonl_task(data, eval_data=held_out, max_tokens=4)
    assert sorted(drawn(task, 1000, held_out=True)) == sorted(f"{n}-1=" for n in range(30))
    assert len(set(drawn(task, 100))) == 100  # nothing of the training file is kept back


def test_a_line_keeps_messages_and_further_keys(tmp_path: Path) -> None:
    messages = json.dumps({"prompt": [HELLO], "answer": "hi", "level": 3})
    lines = "\n" + messages + '\r\n\n{"prompt": "é", "answer": ""}'
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines.encode())  # as some editors write it
    examples = read_examples(path, needs_answer=True)
    assert examples == [Example([HELLO], "hi", {"level": 3}), Example("é", "")]


def test_without_a_function_the_answer_must_be_met(data: Path) -> None:
    task = jsonl_task(data, max_tokens=7)
    example = Example("q", " forty two\n")
    assert [task.reward(example, text) for text in ("forty two", "\n forty two ", "fortytwo", "forty two.", "")] == [
        1, 1, 0, 0, 0,
    ]  # fmt: skip
    assert task.max_tokens == 7
    assert task.name == "jsonl"


REWARDS = """
def length(prompt, response, answer):
    return len(prompt) + 10 * len(response) + 100 * len(answer)

def strict(prompt, response, answer):
    raise KeyError("no verdict")

def nothing(prompt, response, answer):
    return None

def graded(prompt, response, answer):
    return {"score": 1.0, "acc": True}

async def later(prompt, response, answer):
    return 1.0

def undefined(prompt, response, answer):
    return float("nan")

number = 3
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory."""
    folder = tmp_path / "work"
    (folder / "own").mkdir(parents=True)
    (folder / "own" / "rewards.py").write_text(REWARDS)
    (folder / "own" / "broken.py").write_text("import a_package_that_does_not_exist")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in [name for name in sys.modules if name.split(".")[0] == "own"]:
        monkeypatch.delitem(sys.modules, name)
    return "own.rewards"


def test_a_function_judges(tmp_path: Path, rewards: str) -> None:
    path = write(tmp_path / "data.jsonl", [{"prompt": f"p{n}"} for n in range(40)])  # no answers
    task = jsonl_task(path, reward=f"{rewards}:length", max_tokens=4)
    assert task.reward(Example("ab", "c"), "def") == 2 + 10 * 3 + 100 * 1
    assert next(examples(task, 0)).answer == ""


# What a function does wrong reaches the caller, who prints and counts it.
@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("strict", KeyError, "no verdict"),
        ("undefined", ValueError, "returned nan; it must be a finite number or None"),
        ("graded", TypeError, "{'score': 1.0, 'acc': True} of type 'dict'; it must return a number or None"),
        ("later", TypeError, "of type 'coroutine'"),
    ],
)
def test_three_errors_of_a_class_are_let_through(
    data: Path, rewards: str, name: str, error: type[Exception], message: str
) -> None:
    """After them the reward is NaN, which the caller counts as bad: a message per answer would be hundreds a step."""
    task = jsonl_task(data, reward=f"{rewards}:{name}", max_tokens=4)
    for _ in range(3):
        with pytest.raises(error, match=re.escape(message)):
            task.reward(Example("a", "b"), "c")
    assert math.isnan(task.reward(Example("a", "b"), "c") or 0)


def test_none_says_that_a_function_cannot_judge(data: Path, rewards: str) -> None:
    assert jsonl_task(data, reward=f"{rewards}:nothing", max_tokens=4).reward(Example("a", "b"), "c") is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own.rewards", "reward must be package.module:function; got 'own.rewards'"),
        (":f", "reward must be package.module:function; got ':f'"),
        ("own.rewards:", "reward must be package.module:function"),
        ("own.nowhere:f", "reward 'own.nowhere:f' cannot be imported: No module named 'own.nowhere'"),
        ("own.broken:f", "cannot be imported: No module named 'a_package_that_does_not_exist'"),
        (".rewards:f", "reward must be package.module:function"),
        ("own.rewards:missing", "module own.rewards has no function missing"),
        ("own.rewards:number", "module own.rewards has no function number"),
    ],
)
def test_a_wrong_import_path_is_named(rewards: str, path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_reward(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('{"prompt": "\\ud800", "answer": "b"}', "not JSON.*surrogate"),
        ("[" * 100_000, "not JSON"),
        ('["a", "b"]', r'must be an object with a prompt; got \["a", "b"\]'),
        ('{"question": "a", "answer": "b"}', "has no prompt; its keys are: question, answer"),
        ("{}", "has no prompt; its keys are: none"),
        ('{"prompt": "a"}', "has no answer; give one, or a reward function"),
        ('{"prompt": "a", "answer": 3}', "answer must be a text; got 3"),
        ('{"prompt": "", "answer": "b"}', "prompt must be a text or a list .*; got ''"),
        ('{"prompt": 3, "answer": "b"}', "prompt must be a text or a list .*; got 3"),
        ('{"prompt": [], "answer": "b"}', "prompt must be"),
        ('{"prompt": ["a"], "answer": "b"}', "prompt must be"),
        ('{"prompt": [{"role": "user"}], "answer": "b"}', "prompt must be"),
        ('{"prompt": [{"role": "user", "content": null}], "answer": "b"}', "prompt must be"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=f"data.jsonl, line 3: {message}"):
        read_examples(path, needs_answer=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read .*data.jsonl: No such file"), (b"", "has no lines"), (b"\xff\xfe", "is not UTF-8 text")],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        jsonl_task(path, max_tokens=4)


# In the committed runs of addition 99+55= is trained on and 54+19= is held out, and the rule is the same here.
@pytest.mark.parametrize(("prompt", "side"), [("99+55=", "evaluate"), ("54+19=", "train")])
def test_a_file_too_small_to_hold_out_from_asks_for_another(tmp_path: Path, prompt: str, side: str) -> None:
    path = write(tmp_path / "data.jsonl", [{"prompt": prompt, "answer": "x"}] * 3)
    with pytest.raises(UsageError, match=f"one line in eight of 3 leaves none to {side}; give eval_data"):
        jsonl_task(path, max_tokens=4)


def test_held_out_prompts_may_not_be_trained_on(data: Path, tmp_path: Path) -> None:
    held_out = write(tmp_path / "eval.jsonl", [{"prompt": "x", "answer": "y"}, {"prompt": "7+1=", "answer": "8"}])
    with pytest.raises(UsageError, match=r"eval.jsonl contains 1 of the prompts of .*data.jsonl, the first is '7\+1='"):
        jsonl_task(data, eval_data=held_out, max_tokens=4)
