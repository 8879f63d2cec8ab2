import itertools
import random
from collections import deque

import pytest

from rlcorr.train.inputs import sorting
from rlcorr.train.inputs.tasks import Example, get_task


def distances(digits: str) -> dict[str, int]:
    """The oracle: every order of the digits, and how many exchanges of any two neighbours it is away from the right
    one, by breadth-first search from there."""
    start = "".join(sorted(digits))
    steps, waiting = {start: 0}, deque([start])
    while waiting:
        text = waiting.popleft()
        for i in range(len(text) - 1):
            following = text[:i] + text[i : i + 2][::-1] + text[i + 2 :]
            if following not in steps:
                steps[following] = steps[text] + 1
                waiting.append(following)
    return steps


def neighbours_exchanged(before: str, after: str) -> bool:
    """Whether two neighbours, and nothing else, have changed places."""
    apart = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return len(apart) == 2 and apart[1] == apart[0] + 1 and sorted(before) == sorted(after)


@pytest.mark.parametrize("digits", ["3210", "2211", "0120", "51413"])
def test_an_answer_needs_as_many_exchanges_as_the_shortest_way(digits: str) -> None:
    for text, steps in distances(digits).items():
        assert sorting.exchanges(text) == steps


@pytest.mark.parametrize("digits", ["3210", "2110"])
def test_a_list_is_right_if_it_is_one_exchange_closer_to_the_order(digits: str) -> None:
    steps = distances(digits)
    for before, after in itertools.product(steps, repeat=2):
        closer = neighbours_exchanged(before, after) and steps[after] < steps[before]
        if steps[before] > 1:
            assert sorting.score(before + "=", after) == closer / steps[before], (before, after)


def test_every_drawn_answer_is_a_shortest_way() -> None:
    rng = random.Random(5)
    for _ in range(100):
        prompt, answer = sorting.draw(rng)
        lists = [prompt.removesuffix("="), *answer.split(",")]
        assert len(lists[0]) == 12
        assert lists[-1] == "".join(sorted(lists[0]))
        assert all(neighbours_exchanged(before, after) for before, after in itertools.pairwise(lists))
        # Fewer cannot do: an exchange of neighbours mends one pair of digits, and these are the pairs to be mended.
        assert len(lists) - 1 == sum(a > b for a, b in itertools.combinations(lists[0], 2))


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
@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("130,103,013", 1),
        ("301,031,013", 1),
        ("130,103", 2 / 3),
        ("130,103,031", 2 / 3),  # 1, 0 and 3 are not neighbours of the right kind
        ("130,310,130,103,013", 1 / 3),  # back again
        ("130,013", 1 / 3),  # two exchanges at once
        ("013", 0),
        ("310", 0),
        ("", 0),
        ("130,103,013,013", 2 / 3),
        ("130,103,013,", 2 / 3),
        ("130,103,0133", 2 / 3),
        ("130,103,013=", 2 / 3),
        ("130,,103,013", 1 / 3),
        ("1300,103,013", 0),
        (" 130,103,013", 0),
        ("١30,103,013", 0),  # a digit, but not one of ours
        ("130," * 100_000, 1 / 3),
        ("9" * 100_000, 0),
    ],
)
def test_reward(response: str, reward: float) -> None:
    assert get_task("sorting").reward(Example("310=", "130,103,013"), response) == pytest.approx(reward)
