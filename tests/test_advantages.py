"""Advantages against an example worked by hand and against the definition as a double loop."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcorr.advantages import gae, token_rewards, whiten

SHAPE = st.tuples(st.integers(0, 3), st.integers(0, 6))


def batch_of(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    return rewards, values, torch.rand(shape, generator=generator) < 0.7


def test_gae_by_hand() -> None:
    """γ = 0.5, λ = 0.5; rewards 0 0 1, values 1 2 3; the reward is at the last token.

    δ₂ = 1 − 3 = −2             A₂ = −2                         R₂ = 1
    δ₁ = 0 + 0.5·3 − 2 = −0.5   A₁ = −0.5 + 0.25·(−2) = −1      R₁ = 1
    δ₀ = 0 + 0.5·2 − 1 = 0      A₀ = 0 + 0.25·(−1) = −0.25      R₀ = 0.75
    """
    advantages, returns = gae(
        torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3, dtype=torch.bool), 0.5, 0.5
    )
    assert advantages.tolist() == [[-0.25, -1.0, -2.0]]
    assert returns.tolist() == [[0.75, 1.0, 1.0]]


def test_padding_neither_adds_nor_decays() -> None:
    """The same row with a hole in it and NaN around it has the same numbers on its real tokens."""
    nan = math.nan
    advantages, returns = gae(
        torch.tensor([[nan, 0.0, nan, 0.0, 1.0, nan]]),
        torch.tensor([[nan, 1.0, nan, 2.0, 3.0, nan]]),
        torch.tensor([[0, 1, 0, 1, 1, 0]]).bool(),
        0.5,
        0.5,
    )
    assert advantages.tolist() == [[0, -0.25, 0, -1.0, -2.0, 0]]
    assert returns.tolist() == [[0, 0.75, 0, 1.0, 1.0, 0]]


@oracle.examples(80)
@given(SHAPE, st.integers(0, 1000), st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([1.0, 0.95, 0.0]))
def test_gae(shape: tuple[int, int], seed: int, gamma: float, lam: float) -> None:
    rewards, values, mask = batch_of(shape, seed)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for b in range(shape[0]):
        expected = oracle.gae(rewards[b].tolist(), values[b].tolist(), mask[b].tolist(), gamma, lam)
        assert advantages[b].tolist() == pytest.approx(expected[0], abs=1e-12)
        assert returns[b].tolist() == pytest.approx(expected[1], abs=1e-12)


def test_gae_changes_none_of_its_inputs() -> None:
    rewards, values, mask = batch_of((2, 4), 0)
    before = [x.clone() for x in (rewards, values, mask)]
    gae(rewards, values, mask, 0.9, 0.9)
    assert all(torch.equal(x, y) for x, y in zip((rewards, values, mask), before, strict=True))


def test_rewards_sit_on_the_last_real_token() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 1], [0, 0, 0]]).bool()
    placed = token_rewards(torch.tensor([1.0, 2.0, 3.0, math.nan]), mask)
    assert placed.tolist() == [[0, 0, 1], [2, 0, 0], [0, 0, 3], [0, 0, 0]]


def test_whiten_by_hand() -> None:
    """1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9)/4 = 3.5."""
    mask = torch.tensor([[1, 1, 1, 0, 1]]).bool()
    white = whiten(torch.tensor([[1.0, 2.0, 3.0, math.nan, 6.0]]), mask)
    assert white.tolist()[0] == pytest.approx([x / math.sqrt(3.5) for x in (-2, -1, 0, 0, 3)])


def test_what_hardly_varies_is_not_blown_up() -> None:
    """±1e-4 has the variance 1e-8, and 1e-8 is added to it: 1e-4/√2e-8 = 1/√2."""
    white = whiten(torch.tensor([[1e-4, -1e-4]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool))
    assert white.tolist()[0] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-9)


@oracle.examples(40)
@given(SHAPE, st.integers(0, 1000))
def test_whitened_advantages_have_mean_0_and_variance_1(shape: tuple[int, int], seed: int) -> None:
    advantages, _, mask = batch_of(shape, seed)
    white = whiten(advantages, mask)
    kept = oracle.real(white.flatten().tolist(), mask.flatten().tolist())
    assert not white[~mask].any()
    assert oracle.mean(kept) == pytest.approx(0, abs=1e-9)
    if len(kept) > 1:  # 1e-8 is added to a variance that is about 1
        assert oracle.std(kept) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("mask", [[[0, 0]], [[1, 0]], [[1, 1]]])
def test_whitening_what_does_not_vary_gives_zeros(mask: list[list[int]]) -> None:
    white = whiten(torch.full((1, 2), 5.0), torch.tensor(mask).bool())
    assert white.tolist() == [[0.0, 0.0]]
