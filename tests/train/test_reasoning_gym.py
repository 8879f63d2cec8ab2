"""Datasets of the package reasoning-gym as tasks: what is drawn, how it is judged, and what is refused."""

import itertools
import sys
from pathlib import Path

import pytest

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.reasoning_gym_task import INSTRUCTION, gym_task, is_gym, parse_task
from rlcorr.train.inputs.tasks import Example, Task, examples, prompt_text
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
    drawn = prompts(first_task, 1500)  # longer than a chunk
    assert drawn == prompts(second_task, 1500)
    assert drawn[:20] != prompts(first_task, 20, seed=1)
    assert not set(drawn[:1000]) >= set(drawn[1000:])  # the next chunk is another one
    assert (first_task.name, first_task.max_tokens, first_task.prompts) == (SUMS, 8, None)


def test_a_question_ends_with_the_instruction_and_obeys_the_options() -> None:
    for example in first(gym_task(SUMS, 8), 200):
        a, b = terms(prompt_text(example.prompt))
        assert 0 <= a <= 99
        assert 0 <= abs(b) <= 99
        assert int(example.answer) == a + b
        assert example.extra["answer"] == example.answer


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
        "reasoning_gym:basic_arithmetic,operators=+|-,allow_negation=true,format_style=natural",
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


# --- the training's configuration ---


def test_a_training_takes_its_longest_response() -> None:
    config = TrainConfig(task=SUMS, max_response_tokens=24)
    assert config.longest_response == task_of(config).max_tokens == 24
    assert TrainConfig(task=SUMS).longest_response == 256


def test_a_run_is_named_without_the_options(local_runs: Path) -> None:
    prefix = TrainConfig(task="reasoning_gym:basic_arithmetic,operators=+|/").run_prefix
    assert runs.free_name(prefix) == "reasoning_gym_basic_arithmetic_1"
    assert TrainConfig(task="addition").run_prefix == "addition"


# --- what is refused ---


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("reasoning_gym", "needs the name of a dataset, as in reasoning_gym:chain_sum"),
        ("reasoning_gym:min_terms=2", "needs the name of a dataset"),
        ("reasoning_gym:chain_sum,min_terms", "is written option=value; got 'min_terms'"),
        ("chain_sum", "unknown task.*jsonl, reasoning_gym:DATASET, running_sum"),
    ],
)
def test_a_task_written_wrongly_is_refused_at_once(task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainConfig(task=task)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("chain_sums", "unknown dataset of reasoning-gym 'chain_sums'. Did you mean 'chain_sum'"),
        ("chain_sum,min_term=2", "reasoning-gym refuses it: .*unexpected keyword argument 'min_term'"),
        ("chain_sum,seed=3", "multiple values for keyword argument 'seed'"),
        ("chain_sum,min_terms=two", "chain_sum,min_terms=two: reasoning-gym refuses it"),
        ("chain_sum,min_terms=0", "chain_sum,min_terms=0: reasoning-gym refuses it: min_terms must be positive"),
        ("composite", "reasoning-gym refuses it: Must specify at least one dataset"),
        ("gcd,min_value=2,max_value=3,min_numbers=2,max_numbers=2", "has too few different questions to hold out one"),
        ("list_functions", "draws different questions each time"),
    ],
)
def test_the_package_is_asked(task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gym_task(f"reasoning_gym:{task}", 8)


def test_a_dataset_whose_order_depends_on_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(UsageError, match="ransom_note draws different questions in every process: set PYTHONHASHSEED"):
        gym_task("reasoning_gym:ransom_note", 8)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert gym_task("reasoning_gym:ransom_note", 8).max_tokens == 8


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # so that importing it fails
    with pytest.raises(UsageError, match=r"needs the package reasoning-gym.*-r requirements/gym\.txt"):
        task_of(TrainConfig(task=SUMS))


def test_a_name_is_taken_apart() -> None:
    assert parse_task("reasoning_gym:gcd") == ("gcd", {})
    assert parse_task("reasoning_gym:gcd, max_value = 12") == ("gcd", {"max_value": 12})
    assert parse_task("reasoning_gym:x,at=12:30,formula=a=b,rates=0.5|1") == (
        "x", {"at": "12:30", "formula": "a=b", "rates": [0.5, 1]}
    )  # fmt: skip
    assert is_gym("reasoning_gym")
    assert not is_gym("addition")
