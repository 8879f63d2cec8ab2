"""What a learner is told about an answer. The expected sentences are written out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, check, difference, problem

NAN = float("nan")
A = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


def doubled(x: Tensor) -> Tensor:
    return torch.tensor([2 * v for v in x.tolist()], dtype=torch.float64)


DOUBLE = Exercise(
    expected=doubled,
    cases=((A,), (torch.tensor([3.0, 5.0], dtype=torch.float64),)),
    mistakes=((lambda x: x**2, "That is the square."), (lambda x: x + 1, "That adds one.")),
)


FIRST = "In call 1 of 2, with\n  x = [1, 2, 4]\n"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: x + x, None),
        (lambda x: (2 * x).float(), None),  # another precision is no mistake
        (lambda x: x**2, "That is the square.\n" + FIRST + "  yours    [1, 4, 16]\n  expected [2, 4, 8]"),
        (lambda x: -2 * x, "The sign is wrong.\n" + FIRST + "  yours    [-2, -4, -8]\n  expected [2, 4, 8]"),
        (lambda x: x, "Yours is 0.5 times what is expected.\n" + FIRST + "  yours    [1, 2, 4]\n"
                      "  expected [2, 4, 8]"),
        (lambda x: 0.5 / x, "Inverted: yours is 1/x of what is expected.\n" + FIRST + "  yours    [0.5, 0.25, 0.125]\n"
                            "  expected [2, 4, 8]"),
        (lambda x: x.sum(), FIRST + "the shape must be (3,); yours is ()."),
        (lambda x: f"{len(x)}", FIRST + "expected a tensor; yours is '3'."),
        (lambda x: x > 0, FIRST + "expected numbers; yours are torch.bool."),
        (lambda x: torch.where(x == 2, NAN, 2 * x), FIRST + "there is a nan, as from 0 divided by 0. "
                                                  "\n  yours    [2, nan, 8]\n  expected [2, 4, 8]"),
        (lambda x: torch.where(x == 4, 9.0, 2 * x), FIRST + "  yours    [2, 4, 9]\n"
                                                  "  expected [2, 4, 8]"),
        (lambda x: 2.00001 * x, FIRST + "  yours    [2.00001, 4.00002, 8.00004]\n"
                                "  expected [2, 4, 8]"),  # not "1 times what is expected"
        (lambda x: torch.tensor([2.0, 4.0, 8.0]), "Your result is the same in every call.\n"
     "In call 2 of 2, with\n  x = [3, 5]\nthe shape must be (2,); yours is (3,)."),
        (lambda x: x * (0.5 if len(x) == 3 else 3), FIRST + "  yours    [0.5, 1, 2]\n"
                                                "  expected [2, 4, 8]"),  # no relation that both calls have
        (lambda x: x.mul_(2), FIRST + "your function changed its input. Make a new tensor instead."),
        (lambda x: None, "Nothing came back: is there a return?"),
    ],
)  # fmt: skip
def test_what_a_learner_reads(answer: Any, says: str | None) -> None:
    assert problem(answer, DOUBLE) == says


def test_a_mistake_is_named_on_the_call_that_fails() -> None:
    """The second call fails, and its inputs are shown. The cap makes a difference in the third call as well, so an
    answer that is right there has not forgotten it."""
    exercise = Exercise(
        expected=lambda x, cap: min(x, cap),
        cases=((1.0, 2.0), (3.0, 2.0), (5.0, 4.0)),
        mistakes=(
            (lambda x, cap: cap, "That is the cap."),
            (lambda x, cap: x, "The cap is missing."),
        ),
    )
    wrong = "In call 2 of 3, with\n  x   = 3.0\n  cap = 2.0\nyours is 3, expected 2."
    assert problem(lambda x, cap: x, exercise) == f"The cap is missing.\n{wrong}"
    assert problem(lambda x, cap: x if x < 4 else 4.0, exercise) == wrong


def test_an_error_in_another_call_does_not_hide_what_is_wrong_in_this_one() -> None:
    exercise = Exercise(lambda x: 2.0, ((1.0,), (0.0,)), ((lambda x: 3.0, "That is three."),))
    assert problem(lambda x: 3 / x, exercise) == "In call 1 of 2, with\n  x = 1.0\nyours is 3, expected 2."


def test_arguments_have_the_names_of_the_learner_if_there_are_any() -> None:
    exercise = Exercise(lambda old, mask: old, ((A, A > 1),), ())

    def mine(old_log_probs: Tensor, mask: Tensor) -> Tensor:
        return -old_log_probs

    says = "  yours    [-1, -2, -4]\n  expected [1, 2, 4]"
    named = "  old_log_probs = [1, 2, 4]\n  mask          = [False, True, True]\n"
    unnamed = "  old  = [1, 2, 4]\n  mask = [False, True, True]\n"
    assert problem(mine, exercise) == f"The sign is wrong.\nIn call 1 of 1, with\n{named}{says}"
    assert problem(lambda *both: -both[0], exercise) == f"The sign is wrong.\nIn call 1 of 1, with\n{unnamed}{says}"


def test_nan_is_explained_by_padding_only_with_a_mask() -> None:
    with_mask = Exercise(lambda x, mask: x[mask].sum(), ((torch.tensor([1.0, NAN]), torch.tensor([True, False])),), ())
    without = Exercise(lambda x: x.sum(), ((A,),), ())
    assert "Padding may contain anything" in str(problem(lambda x, mask: x.sum(), with_mask))
    assert "0 divided by 0" in str(problem(lambda x: (x - x).sum() / 0, without))


def test_the_cases_stay_as_they_are() -> None:
    problem(lambda x: x.mul_(2), DOUBLE)
    assert A.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda x: x.log(), "Yours is the logarithm of what is expected.\n"),
        (lambda x: x.exp(), "What is expected is the logarithm of yours.\n"),
        (lambda x: x**2, "What is expected is the square root of yours.\n"),
        (lambda x: x**0.5, "Yours is the square root of what is expected.\n"),
        (lambda x: 1 - x, "Yours is 1 minus what is expected.\n"),
    ],
)
def test_a_simple_relation_is_named_unless_the_numbers_are_integers(answer: Any, hint: str) -> None:
    same, fractions = Exercise(lambda x: x, ((A,),), ()), Exercise(lambda x: x, ((A / 16,),), ())
    assert hint in str(problem(answer, fractions))
    assert hint not in str(problem(answer, same))


def test_shapes_that_do_not_fit_are_explained() -> None:
    exercise = Exercise(lambda x, y: x * y[:, None], ((torch.zeros(2, 3), torch.zeros(2)),), ())
    assert "two shapes do not fit, see [:, None]: The size of tensor" in str(problem(lambda x, y: x * y, exercise))


def test_a_verdict_is_the_reason_itself() -> None:
    assert difference("it keeps 12 %.", "right") == "it keeps 12 %."


def test_what_the_answer_raises_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        problem(lambda x: 1 / 0, DOUBLE)


def test_check_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def unwritten(x: Tensor) -> Tensor:
        raise NotImplementedError("write unwritten.")

    check(unwritten, DOUBLE)
    check(doubled, DOUBLE)
    assert capsys.readouterr().out == "Not yet: write unwritten.\nRight.\n"


@pytest.mark.parametrize(
    ("got", "wanted", "says"),
    [
        (1.0 + 1e-7, 1.0, None),
        (1.0 + 1e-5, 1.0, "yours is 1.00001, expected 1."),
        (1e7 + 1, 1e7, None),  # the tolerance is relative for large numbers
        (NAN, NAN, None),
        (float("inf"), 1.0, "yours is inf, expected 1."),
        (2, 3, "yours is 2, expected 3."),
        ("a", "b", "yours is 'a', expected 'b'."),
        (1, True, "expected True or False; yours are torch.int64."),
        ((1, 2), (1, 3), "at [1], yours is 2, expected 3."),
        ({"x": 1}, {"x": 2}, "at ['x'], yours is 1, expected 2."),
        ({"y": 1}, {"x": 2}, "expected a dict with ['x']; yours is {'y': 1}."),
        (torch.zeros(100), torch.ones(100), "100 of 100 values differ; the first, at [0], is 0, expected 1."),
    ],
)  # fmt: skip
def test_the_first_difference(got: Any, wanted: Any, says: str | None) -> None:
    assert difference(got, wanted, 1e-6) == says


def test_only_a_part_may_count() -> None:
    exercise = Exercise(lambda x: 4.0, ((1.0,),), (), part=lambda result: result > 3)
    assert problem(lambda x: 5.0, exercise) is None
    assert problem(lambda x: 2.0, exercise) == "In call 1 of 1, with\n  x = 1.0\nyours is False, expected True."
