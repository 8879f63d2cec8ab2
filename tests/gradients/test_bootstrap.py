"""Intervals, what noise adds to a bootstrap sample, and means and variances answer by answer in numpy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcorr.gradients.bootstrap import (
    BootstrapSamples,
    Interval,
    answer_variances,
    cosine,
    covariances,
    difference_noise,
    interval_of,
    length_of,
    mean_gradients,
)
from rlcorr.gradients.contributions import Contributions


def test_a_bootstrap_sample_without_a_length_counts_with_the_sign_of_its_inner_product() -> None:
    """As its length goes to 0 the clamped quotient goes to ±1; only the sample itself, row 0, has no direction then."""
    inner, lengths = torch.tensor([2.0, 1.0, 1.0, -1.0, 0.0]), torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0])
    assert cosine(inner, lengths).tolist() == pytest.approx([1, 0.5, 1, -1, math.nan], nan_ok=True)
    got = cosine(torch.tensor([2.0, -3.0, 3.0]), torch.tensor([0.0, 1.0, 1.0]))
    assert got.tolist() == pytest.approx([math.nan, -1, 1], nan_ok=True)


A = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
B = np.array([[0.5, -1.0], [2.0, 1.0], [-0.5, 0.75]])
LENGTHS, TOTALS, COUNTS = np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.5, 0.5]), np.array([2.0, 1.0, 2.0])


def parts_of(u: np.ndarray, totals: np.ndarray | None = None) -> Contributions:
    """Return so many of three units."""
    totals = TOTALS if totals is None else totals
    of, n, total, count = (torch.tensor(x[: len(u)]) for x in (u, LENGTHS, totals, COUNTS))
    one = torch.ones_like(n)
    return Contributions(
        u=of, n=n, weight=one, total=total, count=count, u_square=of.square(), u_n=of * n[:, None],
        n_square=n.square(), weight_square=one, probability=one,
    )  # fmt: skip


def replicas_of(
    reference: list[list[float]], noise: list[float], *, exact: bool, factor: float = 1
) -> BootstrapSamples:
    """Two directions, each drawn once in the sample itself; in every other row the first one twice."""
    rows = torch.tensor(reference)
    directions = torch.tensor([[1.0, 1.0], *[[2.0, 0.0]] * (len(rows) - 1)])
    nothing = parts_of(np.zeros((1, 2)))
    noises = torch.tensor(noise)
    return BootstrapSamples(torch.ones(len(rows), 1), directions, rows, noises, exact, nothing, exact, factor)


PRODUCTS, NOISE = torch.tensor([[3.0, 1.0], [4.0, 9.0], [1.0, 9.0]]), [1.0, 0.5]


def test_noise_is_taken_off_sampled_answers_once_and_of_bootstrap_samples_twice() -> None:
    """4 − 1.5; then twice the first direction: 8 − 2 · 2 and 2 − 2 · 2."""
    got = replicas_of([[0.0, 0.0]] * 3, NOISE, exact=False).without_noise(PRODUCTS, torch.tensor(NOISE))
    assert got.tolist() == pytest.approx([2.5, 4, -2])


@pytest.mark.parametrize(
    ("products", "noise", "expected"),
    [
        (PRODUCTS, NOISE, [4, 8 / 1.375, 2 / 1.375]),  # 1.5/4 of the sample's 4 is added on average
        (PRODUCTS / 8, [0.125, 0.125], [0.5, 1 / 1.5, 0.25 / 1.5]),
        (torch.tensor([[3.0, 1.0], [-4.0, 9.0], [1.0, 9.0]]), [1.5, -1.0], [4, -8 / 1.125, 2 / 1.125]),
        (PRODUCTS, [-1.0, 0.5], [4, 8, 2]),
        (-PRODUCTS, NOISE, [-4, -8, -2]),
    ],
)
def test_bootstrap_samples_of_a_whole_task_are_made_smaller(
    products: Tensor, noise: list[float], expected: list[float]
) -> None:
    """The task itself has no noise. Where its product is not above 0, or its noise, nothing is."""
    got = replicas_of([[0.0, 0.0]] * 3, noise, exact=True).without_noise(products, torch.tensor(noise))
    assert got.tolist() == pytest.approx(expected)


def test_prompts_of_a_finite_task_add_less() -> None:
    """A quarter of what they would add: 1.5/4 · 1/4 of the sample's 4."""
    quarter = replicas_of([[0.0, 0.0]] * 3, NOISE, exact=True, factor=0.25)
    assert quarter.without_noise(PRODUCTS, torch.tensor(NOISE)).tolist() == pytest.approx([4, 8 / 1.09375, 2 / 1.09375])


def test_intervals_by_hand() -> None:
    """0 … 100 without the first: 2.5 % of the way from 1 to 100 is 1 + 0.025 · 99 = 3.475."""
    interval = interval_of(torch.arange(101.0), signed=True)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0, 3.475, 97.525))
    assert [Interval(0.2, *ends).tells for ends in ((0.1, 0.3), (-0.3, -0.1), (0.0, 0.3))] == [True, True, False]
    assert length_of(torch.tensor([-4.0, 0.0, 9.0])).tolist() == [0, 0, 3]
    got = interval_of(torch.tensor([1.0, 3.0]), signed=True)
    assert (got.value, got.low, got.high) == (1, 3, 3)
    assert math.isnan(interval_of(torch.tensor([1.0]), signed=True).low)
    assert [interval_of(torch.tensor([1.0, -3.0]), signed=signed).low for signed in (True, False)] == [-3, 0]


# --- means, variances and covariances of three units ---


def alone(u: np.ndarray) -> np.ndarray:
    """How far each unit moves Σu/(Σn · Σtotal/Σcount), the last factor held fixed: (u − n Σu/Σn)/divisor."""
    divisor = LENGTHS.sum() * TOTALS.sum() / COUNTS.sum()
    return (u - LENGTHS[:, None] * u.sum(0) / LENGTHS.sum()) / divisor


def numbers(of: Tensor) -> list[float]:
    return of.flatten().tolist()


def test_the_mean() -> None:
    """Once each, and the first twice without the second: Σ over what is drawn, above and below."""
    drawn = torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0]], dtype=torch.float64)
    got = mean_gradients(parts_of(A), drawn)
    assert numbers(got[0]) == pytest.approx(A.sum(0) / (6 * 4 / 5))
    assert numbers(got[1]) == pytest.approx((2 * A[0] + A[2]) / (7 * 2.5 / 6))


@pytest.mark.parametrize(("sampled", "factor"), [(True, 3 / 2), (False, 1.0)])
def test_the_variance_of_an_answer(sampled: bool, factor: float) -> None:
    """That of the mean of three is a third of it."""
    got = answer_variances(parts_of(A), torch.ones(1, 3, dtype=torch.float64), sampled=sampled)
    assert numbers(got) == pytest.approx(3 * (alone(A) ** 2).sum(0) * factor)


def test_covariances_of_means() -> None:
    a, b = alone(A), alone(B)
    assert numbers(covariances(parts_of(A), parts_of(B))) == pytest.approx((a * b).sum(0) * 3 / 2)
    assert numbers(difference_noise(parts_of(A), parts_of(B))) == pytest.approx(((a - b) ** 2).sum(0) * 3 / 2)
