"""Mean gradients, variances and covariances of three units, answer by answer in numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcorr.gradients.bootstrap import answer_variances, covariances, difference_noise, mean_gradients
from rlcorr.gradients.contributions import Contributions

A = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
B = np.array([[0.5, -1.0], [2.0, 1.0], [-0.5, 0.75]])
LENGTHS, TOTALS, COUNTS = np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.5, 0.5]), np.array([2.0, 1.0, 2.0])


def parts_of(u: np.ndarray, totals: np.ndarray = TOTALS) -> Contributions:
    of, n, total, count = (torch.tensor(x) for x in (u, LENGTHS, totals, COUNTS))
    one = torch.ones_like(n)
    return Contributions(
        u=of, n=n, weight=one, total=total, count=count, u_square=of.square(), u_n=of * n[:, None],
        n_square=n.square(), weight_square=one, probability=one,
    )  # fmt: skip


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


def test_weights_of_0_are_not_divided_by() -> None:
    got = mean_gradients(parts_of(A, np.zeros(3)), torch.ones(1, 3, dtype=torch.float64))
    assert numbers(got) == pytest.approx(A.sum(0) / 6)


@pytest.mark.parametrize(("sampled", "factor"), [(True, 3 / 2), (False, 1.0)])
def test_the_variance_of_an_answer(sampled: bool, factor: float) -> None:
    """That of the mean of three is a third of it."""
    got = answer_variances(parts_of(A), torch.ones(1, 3, dtype=torch.float64), sampled=sampled)
    assert numbers(got) == pytest.approx(3 * (alone(A) ** 2).sum(0) * factor)


def test_covariances_of_means() -> None:
    a, b = alone(A), alone(B)
    assert numbers(covariances(parts_of(A), parts_of(B))) == pytest.approx((a * b).sum(0) * 3 / 2)
    assert numbers(difference_noise(parts_of(A), parts_of(B))) == pytest.approx(((a - b) ** 2).sum(0) * 3 / 2)
