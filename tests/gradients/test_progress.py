"""η by hand, its estimate in random worlds, and which corrections can be told apart by it."""

import math

import pytest
import torch
from torch import Tensor

from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import choices, difference, progress, tied, units_needed


def eta(g: list[float], reference: list[float], noise2: float) -> float:
    a, b = torch.tensor(g), torch.tensor(reference)
    return float(progress((a * b).sum(), a.square().sum(), b.square().sum(), torch.tensor(noise2)))


def test_the_share_by_hand() -> None:
    """⟨g, g*⟩² / (‖g*‖² (‖g‖² + V/B)): of the gradient itself 4/(4 + V/B); at 45° half of it; away from it nothing."""
    assert eta([2, 0], [2, 0], 0) == pytest.approx(1)
    assert eta([2, 0], [2, 0], 12) == pytest.approx(0.25)
    assert eta([1, 1], [2, 0], 0) == pytest.approx(0.5)
    assert eta([3, 4], [1, 0], 11) == pytest.approx(9 / 36)
    assert eta([-2, 0], [2, 0], 1) == 0
    assert eta([0, 1], [2, 0], 1) == 0
    assert eta([0, 0], [2, 0], 0) == 0
    assert math.isnan(eta([1, 0], [0, 0], 1))


def test_a_length_within_the_rounding_makes_no_progress() -> None:
    """‖g*‖² is a million, so squares below 0.01 are rounding: 0.005 counts as 0.01, and half of the share is left."""
    assert eta([0.005**0.5, 0], [1000, 0], 0) == pytest.approx(0.5)
    assert eta([0.02**0.5, 0], [1000, 0], 0) == pytest.approx(1)
    assert math.isnan(eta([1, 0], [0, 0], 1))


def test_the_best_step_of_a_quadratic_makes_this_share() -> None:
    """By brute force: steps along noisy gradients of a quadratic objective, 20,001 lengths, the mean over two equally
    likely gradients; against the best step along the exact one. L = 2."""
    exact, curvature = torch.tensor([1.0, 2.0]).double(), 2.0
    mean, noise = torch.tensor([1.5, 0.5]).double(), torch.tensor([0.3, -1.2]).double()
    lengths = torch.linspace(0, 2, 20_001).double()

    def gained(gradients: list[Tensor]) -> float:
        of_lengths = [lengths * (g @ exact) - lengths**2 * curvature * (g @ g) / 2 for g in gradients]
        return float(torch.stack(of_lengths).mean(0).max())

    share = gained([mean + noise, mean - noise]) / gained([exact])
    assert eta(mean.tolist(), exact.tolist(), float(noise @ noise)) == pytest.approx(share, rel=1e-5)


# --- which is best ---


def samples(*of_corrections: list[float]) -> Tensor:
    """(C, 1, 1 + R)"""
    return torch.tensor(of_corrections)[:, None]


def test_the_choice_by_hand() -> None:
    """Ten bootstrap samples: the second is the best of the sample itself and of eight, the first of two."""
    first = [0.50] + [0.60] * 2 + [0.40] * 8
    second = [0.55] + [0.55] * 10
    third = [0.10] + [0.10] * 10
    nothing = torch.tensor([[0.45] + [0.44] * 10])
    (choice,) = choices(samples(first, second, third), nothing, (256,))
    assert (choice.batch_size, choice.best) == (256, 1)
    assert choice.support == pytest.approx([0.2, 0.8, 0])
    assert choice.groups == [[1, 0], [2]]
    assert choice.over_next.value == pytest.approx(0.05)
    assert choice.over_next.low == pytest.approx(-0.05)
    assert not choice.over_next.tells
    assert (choice.over_nothing.value, choice.over_nothing.low) == pytest.approx((0.1, 0.11))
    assert choice.over_nothing.tells


def test_groups_are_of_those_that_the_first_is_not_told_from() -> None:
    """Differences are paired: 0 and 1 swing together, so they are told apart, although their intervals overlap."""
    swing = torch.linspace(-0.3, 0.3, 41)
    of = torch.stack([0.6 + swing, 0.59 + swing, 0.585 - swing, 0.2 + 0 * swing])
    assert tied(of, [0, 1, 2, 3]) == [[0], [1, 2], [3]]
    assert difference(of[0], of[1]).tells
    assert not difference(of[1], of[2]).tells


@pytest.mark.parametrize(
    ("paired", "needed"),
    [
        (Interval(0.1, -0.1, 0.3), 400),  # half as wide is enough: four times as many
        (Interval(-0.1, -0.3, 0.2), 900),  # counts on the side of 0
        (Interval(0.1, 0.05, 0.3), 100),  # can be told already
        (Interval(0.1, -0.05, 0.12), 225),
        (Interval(0.0, -0.1, 0.1), None),
        (Interval(math.nan, -0.1, 0.1), None),
        (Interval(0.1, math.nan, math.nan), None),
    ],
)
def test_how_many_are_needed_by_hand(paired: Interval, needed: int | None) -> None:
    assert units_needed(100, paired) == pytest.approx(needed, abs=1) if needed else units_needed(100, paired) is None
