"""Advantages against an example worked by hand and against the definition as a double loop."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcorr.losses.advantages import gae, group_normalised, leave_one_out, returns_to_go, token_rewards, whiten

SHAPE = st.tuples(st.integers(0, 3), st.integers(0, 6))


def batch_of(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    return rewards, values, torch.rand(shape, generator=generator) < 0.7


def test_padding_neither_adds_nor_decays() -> None:
    """γ = 0.5, λ = 0.5; rewards 0 0 1, values 1 2 3, with a hole between them and NaN on padding.

    δ₂ = 1 − 3 = −2             A₂ = −2                         R₂ = 1
    δ₁ = 0 + 0.5·3 − 2 = −0.5   A₁ = −0.5 + 0.25·(−2) = −1      R₁ = 1
    δ₀ = 0 + 0.5·2 − 1 = 0      A₀ = 0 + 0.25·(−1) = −0.25      R₀ = 0.75
    """
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


@oracle.examples(60)
@given(SHAPE, st.integers(0, 1000), st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([1.0, 0.95, 0.0]))
def test_gae_and_returns(shape: tuple[int, int], seed: int, gamma: float, lam: float) -> None:
    rewards, values, mask = batch_of(shape, seed)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    to_go = returns_to_go(rewards, mask, gamma)
    for b in range(shape[0]):
        expected = oracle.gae(rewards[b].tolist(), values[b].tolist(), mask[b].tolist(), gamma, lam)
        assert advantages[b].tolist() == pytest.approx(expected[0], abs=1e-12)
        assert returns[b].tolist() == pytest.approx(expected[1], abs=1e-12)
        real, sums = rewards[b][mask[b]].tolist(), to_go[b][mask[b]].tolist()
        assert sums == pytest.approx(
            [sum(gamma**k * r for k, r in enumerate(real[t:])) for t in range(len(real))], abs=1e-12
        )
        assert not to_go[b][~mask[b]].any()


def test_rewards_sit_on_the_last_real_token() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 1], [0, 0, 0]]).bool()
    placed = token_rewards(torch.tensor([1.0, 2.0, 3.0, math.nan]), mask)
    assert placed.tolist() == [[0, 0, 1], [2, 0, 0], [0, 0, 3], [0, 0, 0]]


def test_whiten_by_hand() -> None:
    """1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9)/4 = 3.5."""
    mask = torch.tensor([[1, 1, 1, 0, 1]]).bool()
    white = whiten(torch.tensor([[1.0, 2.0, 3.0, math.nan, 6.0]]), mask)
    assert white.tolist()[0] == pytest.approx([x / math.sqrt(3.5) for x in (-2, -1, 0, 0, 3)])
    for nothing in ([[0, 0]], [[1, 0]], [[1, 1]]):  # and what does not vary becomes 0
        assert whiten(torch.full((1, 2), 5.0), torch.tensor(nothing).bool()).tolist() == [[0.0, 0.0]]


def test_what_hardly_varies_is_not_blown_up() -> None:
    """±1e-4 has the variance 1e-8, and 1e-8 is added to it: 1e-4/√2e-8 = 1/√2."""
    white = whiten(torch.tensor([[1e-4, -1e-4]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool))
    assert white.tolist()[0] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-9)


def groups_by_loop(rewards: list[float], groups: list[int], counted: list[bool], estimator: str) -> list[float]:
    """From the definitions, row by row: verl's GRPO (r − mean)/(std + 1e-6) with n − 1, Dr. GRPO, and RLOO."""
    advantages = []
    for row, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        of_group = [i for i, g in enumerate(groups) if g == group and counted[i]]
        mine, others = ([rewards[i] for i in rows] for rows in (of_group, [i for i in of_group if i != row]))
        if not counted[row] or not others:
            advantages.append(0.0)
        elif estimator == "rloo":
            advantages.append(reward - oracle.mean(others))
        else:
            std = oracle.sample_std(mine) + 1e-6 if estimator == "grpo" else 1.0
            advantages.append((reward - oracle.mean(mine)) / std)
    return advantages


def of_groups(
    estimator: str, rewards: list[float], groups: list[int], counted: list[bool] | None = None
) -> list[float]:
    given_rewards, ids = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups, dtype=torch.int64)
    chosen = None if counted is None else torch.tensor(counted, dtype=torch.bool)
    if estimator == "rloo":
        return leave_one_out(given_rewards, ids, chosen).tolist()
    return group_normalised(given_rewards, ids, chosen, by_std=estimator == "grpo").tolist()


ESTIMATORS = ["grpo", "dr_grpo", "rloo"]
# Reward, group (any numbers, in any order), whether it is counted.
ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 0.5, -2.0, 0.1, 1000.1]), st.sampled_from([7, 3, 1000, -1]), st.booleans()),
    max_size=12,
)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@oracle.examples(50)
@given(rows=ROWS, everything=st.booleans())
def test_groups(estimator: str, rows: list[tuple[float, int, bool]], everything: bool) -> None:
    rewards, groups = [row[0] for row in rows], [row[1] for row in rows]
    counted = [everything or row[2] for row in rows]
    got = of_groups(estimator, rewards, groups, None if everything else counted)
    assert got == pytest.approx(groups_by_loop(rewards, groups, counted, estimator), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_row_that_is_not_counted_moves_no_sibling(estimator: str) -> None:
    """Whatever its reward, NaN included; it gets 0 itself, and a group of which one row is left gets 0 as well."""
    without = of_groups(estimator, [1.0, 0.0], [0, 0])
    for reward in (-1e6, math.nan):
        got = of_groups(estimator, [1.0, 0.0, reward, 4.0, reward], [0, 0, 0, 1, 1], [True, True, False, True, False])
        assert got == [*without, 0, 0, 0]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.7, 10.1, 1000.1])
@pytest.mark.parametrize("rows", [2, 7, 8, 16])
def test_equal_rewards_give_nothing(reward: float, rows: int) -> None:
    """Also in float32, where the mean of n times 10.1 is not 10.1: divided by its own deviation that would be ½."""
    equal, one_group = torch.full((rows,), reward), torch.zeros(rows, dtype=torch.int64)
    assert group_normalised(equal, one_group).abs().max() < 1e-6
    assert leave_one_out(equal, one_group).abs().max() <= 2e-7 * reward * rows
    assert group_normalised(equal, one_group).dtype == torch.float32


# --- returns ---


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_rewards_of_any_dtype_give_the_same_advantages(dtype: torch.dtype) -> None:
    """0/1 rewards often come as integers or bools. By hand, of 1 0 0 0: mean ¼, variance (9/16 + 3/16)/3 = ¼; the mean
    of the others 0 and ⅓; over the batch variance 3/16, so that 1 is at ¾/√(3/16) = √3 and 0 at −1/√3."""
    groups, mask = torch.zeros(4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    rewards = torch.tensor([1, 0, 0, 0]).to(dtype)
    for values, expected in (
        (group_normalised(rewards, groups), [1.5, -0.5, -0.5, -0.5]),
        (group_normalised(rewards, groups, by_std=False), [0.75, -0.25, -0.25, -0.25]),
        (leave_one_out(rewards, groups), [1.0, -1 / 3, -1 / 3, -1 / 3]),
        (whiten(rewards[None], mask)[0], [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),
        (token_rewards(rewards[:1], mask)[0], [0.0, 0.0, 0.0, 1.0]),
        (returns_to_go(rewards.flip(0)[None], mask, 0.5)[0], [0.125, 0.25, 0.5, 1.0]),
        (gae(rewards.flip(0)[None], rewards[None], mask, 0.5, 0.5)[1][0], [0.015625, 0.0625, 0.25, 1.0]),
    ):
        assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert values.tolist() == pytest.approx(expected, abs=1e-5)
