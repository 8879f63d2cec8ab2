"""Datasets of the package reasoning-gym as tasks: what is drawn, how it is judged, and what is refused."""

import importlib
import itertools
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from chat_models import END_OF_TEXT, END_OF_TURN, END_OF_TURN_ID, TEMPLATE, byte_level

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.config.rollout import Sampling
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs import reasoning_gym_task
from rlcorr.train.inputs.reasoning_gym_task import HASH_ORDERED, INSTRUCTION, UNREPEATABLE, gym_task, parse_task
from rlcorr.train.inputs.tasks import Example, Task, examples, prompt_text
from rlcorr.train.rollout.collect import RolloutWorker, collect
from rlcorr.train.rollout.engine import Samples
from rlcorr.train.session.session import task_of

SUMS = "reasoning_gym:chain_sum,min_terms=2,max_terms=2,min_digits=1,max_digits=2"


def first(task: Task, count: int, seed: int = 0, *, held_out: bool = False) -> list[Example]:
    return list(itertools.islice(examples(task, seed, held_out=held_out), count))


def prompts(task: Task, count: int, seed: int = 0, *, held_out: bool = False) -> list[str]:
    return [prompt_text(example.prompt) for example in first(task, count, seed, held_out=held_out)]


def terms(prompt: str) -> list[int]:
    """Return the two numbers of a question such as "… problem: 4 + 38 =", the second with its sign."""
    a, sign, b = prompt.removesuffix(f"\n\n{INSTRUCTION}").rpartition(": ")[2].removesuffix(" =").split(" ")
    return [int(a), int(sign + b)]


# --- what is drawn ---


def test_the_same_seed_draws_the_same_questions() -> None:
    first_task, second_task = gym_task(SUMS, 8), gym_task(SUMS, 8)
    assert prompts(first_task, 1500) == prompts(second_task, 1500)  # longer than a chunk
    assert prompts(first_task, 20) != prompts(first_task, 20, seed=1)
    assert not set(prompts(first_task, 1000)) >= set(prompts(first_task, 1500)[1000:])  # the next chunk is another one
    assert (first_task.name, first_task.max_tokens, first_task.prompts) == (SUMS, 8, None)


def test_a_question_ends_with_the_instruction_and_obeys_the_options() -> None:
    for example in first(gym_task(SUMS, 8), 200):
        a, b = terms(prompt_text(example.prompt))
        assert 0 <= a <= 99
        assert 0 <= abs(b) <= 99
        assert int(example.answer) == a + b
        assert example.extra["answer"] == example.answer


def test_held_out_questions_are_never_trained_on() -> None:
    task = gym_task(SUMS, 8)
    assert not set(prompts(task, 3000)) & set(prompts(task, 300, held_out=True))


# --- how it is judged ---


def test_the_package_judges() -> None:
    """Its rule for sums: 1 for the right answer alone, and for a text that contains it the answer's share of it."""
    task = gym_task(SUMS, 8)
    for example in first(task, 50):
        right = example.answer
        assert task.reward(example, right) == task.reward(example, f" {right}\n") == 1
        assert task.reward(example, f"It is {right}") == pytest.approx(len(right) / len(f"It is {right}"))
        assert task.reward(example, "no idea") == task.reward(example, "") == 0


@pytest.mark.parametrize(
    "name",
    [
        "reasoning_gym:gcd,max_value=12",
        "reasoning_gym:lcm",
        "reasoning_gym:products,min_digits=1,max_digits=1",
        "reasoning_gym:basic_arithmetic,operators=+|-,allow_negation=true,format_style=natural",
        "reasoning_gym:letter_counting",
        "reasoning_gym:word_sorting,transformation=uppercase",
        "reasoning_gym:complex_arithmetic,operations=+|*,operations_weights=0.5|0.5",
    ],
)
def test_datasets_of_other_kinds(name: str) -> None:
    task = gym_task(name, 64)
    assert prompts(task, 10) == prompts(task, 10)
    for example in first(task, 10):
        assert prompt_text(example.prompt).endswith(f"\n\n{INSTRUCTION}")
        assert task.reward(example, example.answer) == 1
        assert task.reward(example, "no idea") in (0, 0.01)  # some give a hundredth for any answer


def test_a_malformed_answer_is_worth_nothing() -> None:
    """The dataset parses the numbers of an answer without a check and raises ValueError."""
    task = gym_task("reasoning_gym:prime_factorization", 16)
    assert task.reward(first(task, 1)[0], "abc") == 0


class Answering:
    """An engine that answers every prompt with the same text."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._ids = [*tokenizer.encode(text, add_special_tokens=False), END_OF_TURN_ID]
        self.given: list[list[int]] = []

    def generate(self, prompts: list[list[int]], *, n: int, **_: Any) -> Samples:
        self.given = prompts
        rows = n * len(prompts)
        return Samples([self._ids] * rows, [[-1.0] * len(self._ids)] * rows)


def test_collected_answers_are_judged() -> None:
    task = gym_task(SUMS, 8)
    tokenizer = byte_level(eos_token=END_OF_TURN, pad_token=END_OF_TEXT, chat_template=TEMPLATE)
    drawn = first(task, 2)
    engine: Any = Answering(tokenizer, f" {drawn[0].answer}")
    sampled = collect(
        RolloutWorker(engine, tokenizer, task, [END_OF_TURN_ID]),
        drawn,
        samples=2,
        sampling=Sampling(),
        version=0,
        seed=0,
    )
    assert f"{drawn[1].prompt}{END_OF_TURN}" in str(tokenizer.decode(engine.given[1]))
    assert sampled.rewards[:2] == [1, 1]
    assert all(reward is not None and reward < 1 for reward in sampled.rewards[2:])


# --- the training's configuration ---


def test_a_training_takes_its_longest_response() -> None:
    config = TrainConfig(task=SUMS, max_response_tokens=24)
    assert config.longest_response == task_of(config).max_tokens == 24
    assert TrainConfig(task=SUMS).longest_response == 256


def test_a_run_is_named_without_the_options(local_runs: Path) -> None:
    prefix = TrainConfig(task="reasoning_gym:basic_arithmetic,operators=+|/").run_prefix
    assert runs.free_name(prefix) == "reasoning_gym_basic_arithmetic_1"
    assert TrainConfig(task="addition").run_prefix == "addition"


def test_train_prompts_limits_the_questions() -> None:
    task = task_of(TrainConfig(task=SUMS, train_prompts=5))
    assert len(set(prompts(task, 50))) == 5
    assert not set(prompts(task, 5)) & set(prompts(task, 100, held_out=True))


@pytest.mark.slow
def test_the_package_is_not_imported_before_a_task_is_made() -> None:
    script = (
        "import sys; from rlcorr.train.config.training import TrainConfig; "
        f"TrainConfig(task={SUMS!r}); print('reasoning_gym' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"


# --- what is refused ---


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("reasoning_gym", "needs the name of a dataset, as in reasoning_gym:chain_sum"),
        ("reasoning_gym:", "needs the name of a dataset"),
        ("reasoning_gym:min_terms=2", "needs the name of a dataset"),
        ("reasoning_gym:chain_sum,min_terms", "option=value; got 'min_terms'"),
        ("reasoning_gym:chain_sum,", "option=value; got ''"),
        ("reasoning_gym:chain_sum,=2", "option=value; got '=2'"),
        (
            "reasoning_gym:chain_sum,min_terms=2,min_terms=3",
            "option min_terms of reasoning_gym:chain_sum is given twice",
        ),
        ("reasoning-gym:chain_sum", "unknown task.*jsonl, product_questions, reasoning_gym:DATASET, running_sum"),
    ],
)
def test_a_task_written_wrongly_is_refused_at_once(task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainConfig(task=task)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("chain_sums", "unknown dataset of reasoning-gym 'chain_sums'. Did you mean 'chain_sum'"),
        (
            "chain_sum,min_term=2",
            "unknown option of reasoning_gym:chain_sum 'min_term'. Did you mean 'min_terms'.*Known: ",
        ),
        ("chain_sum,seed=3", "unknown option of reasoning_gym:chain_sum 'seed'"),
        ("chain_sum,min_terms=two", "option min_terms of reasoning_gym:chain_sum must be of type int; got 'two'"),
        ("chain_sum,min_terms=1.5", "must be of type int; got '1.5'"),
        ("chain_sum,allow_negation=2", "must be of type bool; got '2'"),
        ("basic_arithmetic,format_style=grand", r"must be of type Literal\['simple', 'natural'\]; got 'grand'"),
        ("word_sorting,transformation=loud", "must be of type TextTransformation; got 'loud'"),
        ("time_intervals,min_time=12:00", "option min_time of reasoning_gym:time_intervals is of type time, which"),
        ("chain_sum,min_terms=0", "chain_sum,min_terms=0: reasoning-gym refuses it: min_terms must be positive"),
        ("chain_sum,min_terms=3,max_terms=2", "reasoning-gym refuses it: max_terms must be >= min_terms"),
        ("composite", "reasoning-gym refuses it: Must specify at least one dataset"),
        (
            "gcd,min_value=2,max_value=3,min_numbers=2,max_numbers=2",
            "has too few different questions to hold out one in eight",
        ),
        ("list_functions", "draws different questions each time"),
    ],
)
def test_the_package_is_asked(task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gym_task(f"reasoning_gym:{task}", 8)


def test_a_dataset_whose_order_depends_on_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(
        UsageError, match="ransom_note draws different questions in every process: set PYTHONHASHSEED=0"
    ):
        gym_task("reasoning_gym:ransom_note", 8)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert gym_task("reasoning_gym:ransom_note", 8).max_tokens == 8


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # so that importing it fails
    with pytest.raises(UsageError, match=r"needs the package reasoning-gym.*-r requirements/gym\.txt"):
        task_of(TrainConfig(task=SUMS))


def test_every_dataset_takes_the_seed_and_the_size_of_the_stream() -> None:
    datasets = importlib.import_module("reasoning_gym.factory").DATASETS
    assert set(datasets) >= UNREPEATABLE | HASH_ORDERED
    for name, (_, config_type) in datasets.items():
        assert {"seed", "size"} <= typing.get_type_hints(config_type).keys(), name


def test_a_name_is_taken_apart() -> None:
    assert parse_task("reasoning_gym:gcd") == ("gcd", {})
    assert parse_task("reasoning_gym:gcd, max_value = 12") == ("gcd", {"max_value": "12"})
    assert parse_task("reasoning_gym:x,at=12:30,formula=a=b") == ("x", {"at": "12:30", "formula": "a=b"})
    assert reasoning_gym_task.is_gym("reasoning_gym")
    assert not reasoning_gym_task.is_gym("addition")
