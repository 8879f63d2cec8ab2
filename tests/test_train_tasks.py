import itertools

import pytest

from rlcorr.errors import UsageError
from rlcorr.train.tasks import ALPHABET, TASKS, Example, examples, get_task


@pytest.mark.parametrize("name", TASKS)
def test_right_answers_are_worth_one_and_fit(name: str) -> None:
    task = get_task(name)
    for example in itertools.islice(examples(task, seed=3), 200):
        assert task.reward(example, example.answer) == 1
        assert len(example.answer) + 1 <= task.max_tokens  # one character a token, and <eos>
        assert set(example.prompt + example.answer) <= set(ALPHABET)


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_draws_the_same_prompts(name: str) -> None:
    task = get_task(name)
    first, second, other = ([e.prompt for e in itertools.islice(examples(task, s), 20)] for s in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize("name", TASKS)
def test_held_out_prompts_are_never_trained_on(name: str) -> None:
    task = get_task(name)
    trained = {e.prompt for e in itertools.islice(examples(task, 0), 5000)}
    held_out = {e.prompt for e in itertools.islice(examples(task, 0, held_out=True), 500)}
    assert not trained & held_out


def test_addition_adds() -> None:
    for example in itertools.islice(examples(get_task("addition"), 0), 50):
        a, b = example.prompt.removesuffix("=").split("+")
        assert int(a) + int(b) == int(example.answer)


def test_running_sums_are_long() -> None:
    lengths = [len(e.answer) for e in itertools.islice(examples(get_task("running_sum"), 0), 200)]
    assert min(lengths) >= 30
    assert max(lengths) <= 80


# 4+7+2= is answered 4,11,13. One third of the reward for every sum before the first mistake; an answer that goes on
# after the last sum loses one of them.
@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("4,11,13", 1),
        ("4,11,14", 2 / 3),
        ("4,12,13", 1 / 3),
        ("5,11,13", 0),
        ("4,11", 2 / 3),
        ("", 0),
        ("4,11,13,9", 2 / 3),
    ],
)
def test_running_sum_reward(response: str, reward: float) -> None:
    example = Example("4+7+2=", "4,11,13")
    assert get_task("running_sum").reward(example, response) == pytest.approx(reward)


def test_unknown_task_names_what_exists() -> None:
    with pytest.raises(UsageError, match=r"'adition'.*'addition'.*addition, running_sum"):
        get_task("adition")
