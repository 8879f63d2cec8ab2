"""Losses per token at their clips and bounds, by hand. What verl and SkyRL computed is in `test_objective_golden`, and
what UniRL and the code of papers computed in `test_policy_losses`."""

import math

import pytest
import torch
from torch import Tensor

from rlcorr.losses import per_token
from rlcorr.losses.per_token import clipped_value, ppo_clip


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"),
    [
        (3.0, 2.0, 0.5, 1.0),
        (3.0, 3.0, 2.0, 0.0),
        (0.5, 2.0, 1.125, -1.5),
        (-3.0, 0.0, 4.5, -3.0),
    ],
)
def test_the_value_loss_takes_the_worse_of_the_two(value: float, target: float, loss: float, slope: float) -> None:
    """V_old = 0, clip 1. V = 3: clip(V) = 1, so with R = 2 max((3−2)², (1−2)²)/2 = 0.5, and with R = 3 max(0, 4)/2."""
    leaf = torch.tensor(value, requires_grad=True)
    got = clipped_value(leaf, torch.tensor(0.0), torch.tensor(target), clip=1.0)
    (gradient,) = torch.autograd.grad(got, leaf)
    assert got.item() == loss
    if value != 3.0 or target != 2.0:  # both are equally bad there
        assert gradient.item() == slope


CORNERS = [  # log ρ, A, loss and its slope in log π_θ of PPO's clip at 0.2
    (math.log(1.5), 1.0, -1.2, 0.0),  # a good token already 50 % more likely: clipped, no gradient
    (math.log(1.5), -1.0, 1.5, 1.5),  # a bad token that became likelier: pushed back in full
    (math.log(0.5), 1.0, -0.5, -0.5),  # a good token that became rarer: pulled up in full
    (math.log(0.5), -1.0, 0.8, 0.0),  # a bad token already half as likely: clipped, no gradient
    (math.log(1.1), 2.0, -2.2, -2.2),  # inside the clip: −A ρ, and its slope is −A ρ too
    (1000.0, -1.0, math.exp(20), 0.0),  # ρ stops at e²⁰
]


@pytest.mark.parametrize(("log_ratio", "advantage", "value", "slope"), CORNERS)
def test_the_corners_of_the_clip(log_ratio: float, advantage: float, value: float, slope: float) -> None:
    theta = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    loss = ppo_clip(theta, torch.zeros(()).double(), torch.tensor(advantage).double(), low=0.2, high=0.2)
    (gradient,) = torch.autograd.grad(loss, theta)
    assert (loss.item(), gradient.item()) == pytest.approx((value, slope))


def test_ratios_stop_before_they_are_infinite() -> None:
    """gspo's at e¹⁰, geo_mean's at e²⁰."""
    theta, a, keep = torch.tensor([[-1.0]], requires_grad=True), -torch.ones(1, 1), torch.ones(1, 1).bool()
    for loss, largest in ((per_token.gspo, 10), (per_token.geo_mean, 20)):
        value = loss(theta, torch.tensor([[-99.0]]), a, keep, low=0.2, high=0.3)
        (gradient,) = torch.autograd.grad(value.sum(), theta)
        assert value.item() == pytest.approx(math.exp(largest))
        assert gradient.isfinite().all()


def test_kl_cov_penalises_the_largest_covariances() -> None:
    """cov = A·log π up to means: of four tokens a share of one half is two, those of covariance 4.5 and 0.5."""
    theta = torch.tensor([[-1.0, -2.0, -3.0, -4.0, 0.0]], requires_grad=True)
    a = torch.tensor([[3.0, 2.0, 1.0, 0.0, 99.0]])
    keep = torch.tensor([[True, True, True, True, False]])
    # means −2.5 and 1.5: cov 1.5·1.5, 0.5·0.5, −0.5·−0.5, −1.5·−1.5 = 2.25, 0.25, 0.25, 2.25
    old = theta.detach() - 0.25
    got = per_token.kl_cov(theta, old, a, keep, share=0.5, coef=0.1)
    plain = -a * math.exp(0.25)
    torch.testing.assert_close((got - plain)[0, :4], 0.1 * torch.tensor([0.25, 0.0, 0.0, 0.25]))
    got[keep].sum().backward()
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad[0, :4], plain[0, :4] + 0.1 * torch.tensor([1.0, 0.0, 0.0, 1.0]))


def test_clip_cov_drops_a_share_of_the_candidates_at_random() -> None:
    """100 tokens, half with covariance 2.25 within (1, 5), half 0.25: a share of 0.1 drops ten of the first half."""
    theta = torch.tensor([[-1.0, -2.0, -3.0, -4.0]]).repeat(25, 1).requires_grad_()
    a = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).repeat(25, 1) + 0.1
    keep = torch.ones(25, 4, dtype=torch.bool)

    def dropped(seed: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        loss = per_token.clip_cov(
            theta, theta.detach(), a, keep, low=0.2, high=0.2, share=0.1, bounds=(1.0, 5.0), generator=draw
        )
        assert torch.equal(loss != 0, loss == -a)
        return loss == 0

    first, second = dropped(0), dropped(1)
    assert first.sum() == second.sum() == 10
    assert not (first | second)[:, 1:3].any()
    assert not torch.equal(first, second)
    assert torch.equal(dropped(0), first)


# Covariances 2.25, 0.25, 0.25, 2.25: log π_θ has the mean −2.5, and the advantages the mean −7.5.
THETA, A, KEEP = (
    torch.tensor([[-1.0, -2.0, -3.0, -4.0]]),
    torch.tensor([[-6.0, -7.0, -8.0, -9.0]]),
    torch.ones(1, 4).bool(),
)


@pytest.mark.parametrize(
    ("moved", "advantages", "bounds", "expected"),
    [
        (0.0, A, (2.0, 5.0), [0, 7, 8, 0]),  # the outer two are dropped
        (0.0, A, (2.25, 5.0), [6, 7, 8, 9]),  # the bounds themselves are outside
        (0.0, A, (0.25, 2.25), [6, 7, 8, 9]),
        (-0.5, A, (2.0, 5.0), [4.8, 5.6, 6.4, 7.2]),  # ρ = e^−0.5 < 0.8 and A < 0: all are clipped already
        (0.5, A + 9.1, (2.0, 5.0), [-3.72, -2.52, -1.32, -0.12]),  # ρ = e^0.5 and A > 0: so are these
        (0.0, A + 9.0, (2.0, 5.0), [0, -2, -1, 0]),  # the last has A = 0 and is dropped
    ],
)
def test_clip_cov_drops_what_is_within_its_bounds_and_not_clipped(
    moved: float, advantages: Tensor, bounds: tuple[float, float], expected: list[float]
) -> None:
    got = per_token.clip_cov(THETA, THETA - moved, advantages, KEEP, low=0.2, high=0.2, share=1.0, bounds=bounds)
    assert got[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_share_of_tokens_that_a_covariance_loss_takes() -> None:
    """A tenth of four tokens is one, of equals the first; of a hundred equal covariances it is ten; none of nothing."""
    got = per_token.kl_cov(THETA, THETA - 1, A, KEEP, share=0.1, coef=1.0)
    assert (got + A * math.e).tolist()[0] == pytest.approx([1, 0, 0, 0], abs=1e-5)
    theta, keep = -torch.rand(10, 10), torch.ones(10, 10, dtype=torch.bool)
    got = per_token.kl_cov(theta, theta - 1, torch.ones(10, 10), keep, share=0.1, coef=1.0)
    assert (got > -math.e + 0.5).sum() == 10
    empty, none = torch.zeros(0, 3), torch.zeros(1, 2)
    assert per_token.kl_cov(empty, empty, empty, empty.bool(), share=0.5, coef=1.0).shape == (0, 3)
    assert per_token.kl_cov(none, none, none, none.bool(), share=0.5, coef=1.0).tolist() == [[0, 0]]
