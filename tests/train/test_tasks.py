import itertools
import random

import pytest

from rlcorr.errors import UsageError
from rlcorr.train.inputs import countdown, sorting
from rlcorr.train.inputs.tasks import (
    ALPHABET,
    TASKS,
    Example,
    Task,
    examples,
    get_task,
    is_held_out,
    prompt_text,
    with_prompts,
)


def texts(task: Task, count: int, seed: int = 0, *, held_out: bool = False) -> list[str]:
    return [prompt_text(e.prompt) for e in itertools.islice(examples(task, seed, held_out=held_out), count)]


@pytest.mark.parametrize("name", TASKS)
def test_what_every_task_does(name: str) -> None:
    """Right answers are worth one and fit; a seed draws the same prompts; held-out prompts are never trained on."""
    task = get_task(name)
    for example in itertools.islice(examples(task, seed=3), 50):
        assert task.reward(example, example.answer) == 1
        assert len(example.answer) + 1 <= task.max_tokens  # one character a token, and <eos>
        assert set(prompt_text(example.prompt) + example.answer) <= set(ALPHABET)
    assert texts(task, 20, 1) == texts(task, 20, 1) != texts(task, 20, 2)
    assert not set(texts(task, 500)) & set(texts(task, 100, held_out=True))


# Written down from the version that drew the prompts of the committed runs: those can be repeated while these stay.
DRAWN = {
    ("addition", 0, False): "99+55= 78+86= 34+19= 61+69=",
    ("addition", 0, True): "54+19= 2+28= 91+41= 56+55=",
    ("addition", 7, False): "74+76= 17+73= 84+0= 33+88=",
    ("running_sum", 0, False): "8+6+3+8+1+2+2+7+3+6+3+8+7+1+1+5+3+7+1+7= 3+7+3+9+2+9+1+3+6+3+5+2+6+3+5+4+9+2+9+2=",
    ("running_sum", 0, True): "4+8+3+1+9+0+5+2+7+5+2+4+7+4+6+9+5+8+2+9= 6+0+2+4+4+3+2+1+8+1+1+7+8+7+9+8+0+4+6+3=",
    ("sorting", 0, False): "571707117168= 091740548941= 364012216379=",
    ("sorting", 0, True): "001709148442= 139654637397= 874317094969=",
}


def test_the_prompts_of_committed_runs_stay() -> None:
    for (name, seed, held_out), first in DRAWN.items():
        assert " ".join(texts(get_task(name), len(first.split()), seed, held_out=held_out)) == first, (name, seed)


def test_running_sum_reward() -> None:
    """4+7+2= is answered 4,11,13. A third of the reward for every sum before the first mistake; an answer that goes on
    after the last sum loses one of them."""
    rewards = {"4,11,13": 3, "4,11,14": 2, "4,12,13": 1, "5,11,13": 0, "4,11": 2, "": 0, "4,11,13,9": 2}
    for response, thirds in rewards.items():
        got = get_task("running_sum").reward(Example("4+7+2=", "4,11,13"), response)
        assert got == pytest.approx(thirds / 3), response


# By hand: 3 · 7 + 25 = 46, 25 − 7 · 3 = 4, 7/3 + 25 = 82/3; 7·7 and 3·7 use other numbers than the three given. The
# ٣ is a digit, but not one of ours.
COUNTDOWN = {
    1: ["3*7+25", "25+(7*3)", "((3*7)+25)"],
    0.1: ["25-7*3", "7/3+25"],
    0: [
        "3*7+25=46", "3*7+25,", "3*7", "7*7-3", "3*7+25+3", "3*72+5", "03*7+25", "3**7+25", "25//7*3", "-3*7+25",
        "3(7)+25", "3*7+25)", "(3,7,25)", "3 *7+25", "3*7+25\n", "3_*7+25", "3.*7+25", "٣*7+25", "46", "",
        "(" * 30 + "3*7+25" + ")" * 30, "(" * 100_000, "9" * 100_000,
    ],
}  # fmt: skip


def test_countdown_reward() -> None:
    for reward, responses in COUNTDOWN.items():
        for response in responses:
            got = get_task("countdown").reward(Example("46=3,7,25=", "3*7+25"), response)
            assert got == reward, response[:40]
    assert countdown.score("4=4,4,4=", "4/(4-4)") == 0


RIGHT = ["1234", " 1234\n", "1200 + 34 = 1234.", "The sum is 1,234, not negative", "12 + 3 is 15, so 1234!"]
WRONG = ["", "none", "12345", "1234.5", "1,23,4", "12 34"]
GOES_ON = ["1234 is 1200 + 34", "1200 + 34 = 1234.\n\nOther: 6"]


@pytest.mark.parametrize(("name", "goes_on"), [("sum_questions", 1.0), ("explained_products", 0.0)])
def test_questions_are_answered_by_a_number_in_the_response(name: str, goes_on: float) -> None:
    """A pretrained model says 1200 + 34 = 1234 and goes on. Thousands may be grouped; a decimal is another number. Of
    an explanation only the last number counts."""
    example, judge = Example("How many?", "1234"), get_task(name).reward
    assert [judge(example, response) for response in RIGHT] == [1.0] * len(RIGHT)
    assert [judge(example, response) for response in WRONG] == [0.0] * len(WRONG)
    assert [judge(example, response) for response in GOES_ON] == [goes_on] * len(GOES_ON)


def test_unknown_task_names_what_exists() -> None:
    with pytest.raises(UsageError, match=r"'adition'.*'addition'.*countdown, explained_products, running_sum"):
        get_task("adition")


def test_a_training_on_a_few_prompts() -> None:
    """The first different ones that the task would draw, all of them before any comes again."""
    whole, few = get_task("addition"), with_prompts(get_task("addition"), 40, seed=3)
    first = list(dict.fromkeys(texts(whole, 400, seed=3)))[:40]
    for seed in (3, 4):
        drawn = texts(few, 120, seed)
        assert [sorted(drawn[at : at + 40]) for at in (0, 40, 80)] == [sorted(first)] * 3
    assert few.prompts == 40
    assert texts(few, 40) != texts(few, 40, seed=1)
    assert texts(few, 30, held_out=True) == texts(whole, 30, held_out=True)


def test_more_prompts_than_a_task_has() -> None:
    """Of the 10,000 sums of two numbers below 100, the trained ones are those that are not held out."""
    sums = {f"{a}+{b}=" for a in range(100) for b in range(100)}
    trained = sum(not is_held_out(text) for text in sums)
    with pytest.raises(UsageError, match=f"train_prompts is 10,000, but task addition has only {trained:,}"):
        with_prompts(get_task("addition"), 10_000, seed=0)


# --- sorting ---


def test_answers_are_long_and_differ_from_draw_to_draw() -> None:
    rng = random.Random(6)
    drawn = [sorting.draw(rng) for _ in range(300)]
    lengths = [len(answer) + 1 for _, answer in drawn]  # one character a token, and <eos>
    assert 208 <= min(lengths) <= 240
    assert 470 <= max(lengths) <= 494 == get_task("sorting").max_tokens
    digits = drawn[0][0].removesuffix("=")
    assert len({sorting.answer(digits, rng) for _ in range(50)}) == 50


# 310= needs three exchanges: 31 and 10 and 30 are in the wrong order. One third of the reward for each before the first
# mistake; an answer that goes on after the last loses one of them.
THIRDS = {
    3: ["130,103,013", "301,031,013"],
    2: ["130,103", "130,103,031", "130,103,013,013", "130,103,013,", "130,103,0133"],  # 1, 0 and 3 are no neighbours
    1: ["130,310,130,103,013", "130,013", "130,,103,013", "130," * 100_000],  # back again; two exchanges at once
    0: ["013", "310", "", "1300,103,013", " 130,103,013", "١30,103,013", "9" * 100_000],  # a digit, but not ours
}


def test_sorting_reward() -> None:
    for thirds, responses in THIRDS.items():
        for response in responses:
            got = get_task("sorting").reward(Example("310=", "130,103,013"), response)
            assert got == pytest.approx(thirds / 3), response[:40]
