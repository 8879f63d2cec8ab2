"""The regression behind the proof of a sync, on data whose coefficients are known."""

import pytest
import torch

from rlcorr.train.rollout.robust_fit import robust_fit


def drawn(noise: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return columns of different sizes, and 0·first + 1·second + noise."""
    columns = torch.randn(len(noise), 2, generator=torch.Generator().manual_seed(seed)).double() * torch.tensor(
        [3, 0.1]
    )
    return columns, columns[:, 1] + noise


def test_without_noise_the_coefficients_are_exact() -> None:
    fit = robust_fit(*drawn(torch.zeros(50, dtype=torch.float64)))
    assert fit.coefficients.tolist() == pytest.approx([0, 1], abs=1e-9)


def test_one_wild_token_moves_nothing() -> None:
    noise = torch.zeros(50, dtype=torch.float64)
    noise[7] = 1000
    assert robust_fit(*drawn(noise)).coefficients.tolist() == pytest.approx([0, 1], abs=1e-6)


def test_a_column_without_a_part_has_no_answer() -> None:
    columns, target = drawn(torch.zeros(50, dtype=torch.float64))
    fit = robust_fit(torch.cat([columns, torch.zeros(50, 1).double()], -1), target)
    assert (float(fit.coefficients[2]), float(fit.errors[2])) == (0, torch.inf)


def test_the_error_is_the_spread_of_the_coefficient() -> None:
    """Over 200 draws of noise from Student's t with four degrees; a spread of 200 is known to 5 %."""
    fits = []
    for seed in range(200):
        some = torch.Generator().manual_seed(1000 + seed)
        normal, rest = torch.randn(100, generator=some), torch.randn(4, 100, generator=some)
        noise = (normal / rest.square().mean(0).sqrt()).double()
        fits.append(robust_fit(*drawn(noise, seed)))
    spread = torch.stack([fit.coefficients for fit in fits]).std(0)
    error = torch.stack([fit.errors for fit in fits]).mean(0)
    assert (error / spread).tolist() == pytest.approx([1, 1], abs=0.2)
