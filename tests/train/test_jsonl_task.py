"""A file of one's own as a task: what it draws, how it judges, and what it says about mistakes."""

import itertools
import json
import math
import re
import sys
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


def test_training_goes_over_the_file_in_a_new_order_each_time(data: Path) -> None:
    task = jsonl_task(data, max_tokens=4)
    count = task.prompts or 0
    prompts = drawn(task, 3 * count)
    passes = [prompts[:count], prompts[count : 2 * count], prompts[2 * count :]]
    assert all(len(set(one)) == count for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert prompts == drawn(task, 3 * count)
    assert prompts != drawn(task, 3 * count, seed=1)


def test_a_line_keeps_messages_and_further_keys(tmp_path: Path) -> None:
    messages = json.dumps({"prompt": [HELLO], "answer": "hi", "level": 3})
    lines = "\n" + messages + '\r\n\n{"prompt": "é", "answer": ""}'
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines.encode())  # as some editors write it
    examples = read_examples(path, needs_answer=True)
    assert examples == [Example([HELLO], "hi", {"level": 3}), Example("é", "")]


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
    (folder / "own" / "leaves.py").write_text("import sys\nsys.exit(0)")
    (folder / "own" / "wrong.py").write_text("def f(:")
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
        ("own.rewards", "reward 'own.rewards' is no function. Write package.module:function"),
        (":f", "reward ':f' cannot be imported: invalid format"),
        ("own.nowhere:f", "reward 'own.nowhere:f' cannot be imported: No module named 'own.nowhere'"),
        ("own.rewards:missing", "cannot be imported: module 'own.rewards' has no attribute 'missing'"),
        ("own.rewards:number", "is no function"),
        ("own.leaves:f", "reward 'own.leaves:f' cannot be imported: SystemExit: 0"),
        ("own.wrong:f", "reward 'own.wrong:f' cannot be imported: SyntaxError"),
    ],
)
def test_a_wrong_import_path_is_named(rewards: str, path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_reward(path)


# In the committed runs of addition 99+55= is trained on and 54+19= is held out, and the rule is the same here.
FILES: list[tuple[bytes, str]] = [
    (b"", "data.jsonl has no lines"),
    (b"\xff\xfe", "cannot read .*data.jsonl: 'utf-8' codec"),
    (b'{"prompt": "99+55=", "answer": "x"}\n' * 3, "one line in eight of 3 leaves none to evaluate"),
    (b'{"prompt": "54+19=", "answer": "x"}\n' * 3, "one line in eight of 3 leaves none to train"),
    (b'{"prompt": "a", "answer": "b"}\n\n{', "data.jsonl, line 3: not JSON"),
    (b'["a", "b"]', r'line 1: must be an object with a prompt; got \["a", "b"\]'),
    (b'{"question": "a", "answer": "b"}', "line 1: must be an object with a prompt"),
    (b'{"prompt": "a"}', "has no answer; give one, or a reward function"),
    (b'{"prompt": "a", "answer": 3}', "answer must be a text; got 3"),
    (b'{"prompt": "", "answer": "b"}', "prompt must be a text or a list .*; got ''"),
    (b'{"prompt": 3, "answer": "b"}', "prompt must be a text or a list .*; got 3"),
    (b'{"prompt": ["a"], "answer": "b"}', "prompt must be"),
    (b'{"prompt": [{"role": "user"}], "answer": "b"}', "prompt must be"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_wrong_file_is_named_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        jsonl_task(path, max_tokens=4)
