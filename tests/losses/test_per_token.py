"""Losses per token: values against the scalar oracle, gradients against its central differences."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcorr.losses import per_token
from rlcorr.losses.per_token import clipped_value, ppo_clip, reinforce


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


LOW, HIGH, CAP, TAU, COEF, EPSILON = 0.2, 0.3, 3.0, (1.0, 1.05), 0.1, 0.4
Row = list[float]


def surrogate(
    name: str, theta: list[Row], at: list[Row], old: list[Row], a: list[Row], keep: oracle.Masks
) -> list[Row]:
    """Each loss with plain floats. What is detached is computed at `at`, so a difference in `theta` is the gradient."""
    rows = []
    for b, marks in enumerate(keep):
        kept = [t for t, k in enumerate(marks) if k]
        n = max(len(kept), 1)
        mean_at = sum(at[b][t] - old[b][t] for t in kept) / n
        row = [0.0] * len(marks)
        for t in kept:
            x, y, q, adv = theta[b][t], at[b][t], old[b][t], a[b][t]
            rho, frozen = oracle.ratio(x - q), oracle.ratio(y - q)
            if name == "ppo_clip":
                row[t] = oracle.ppo_clip(x, q, adv, LOW, HIGH)
            elif name == "reinforce":
                row[t] = -adv * x
            elif name == "dual_clip":
                loss = oracle.ppo_clip(x, q, adv, LOW, HIGH)
                row[t] = min(loss, -CAP * adv) if adv < 0 else loss
            elif name == "gspo":
                s = math.exp(min(mean_at + x - y, 10))
                row[t] = max(-adv * s, -adv * oracle.clamp(s, 1 - LOW, 1 + HIGH))
            elif name == "cispo":
                row[t] = -oracle.clamp(frozen, 1 - LOW, 1 + HIGH) * adv * x
            elif name == "sapo":
                tau = TAU[0] if adv > 0 else TAU[1]
                row[t] = -4 / tau / (1 + math.exp(-tau * (rho - 1))) * adv
            elif name in ("dppo_tv", "dppo_kl"):
                moved = math.exp(y) - math.exp(q) if name == "dppo_tv" else oracle.signed_kl(y, q)
                inside = moved <= HIGH if adv > 0 else moved >= -LOW
                row[t] = -min(frozen, CAP) * adv * x if inside else 0.0
            elif name == "drpo":
                row[t] = -adv * rho + abs(adv) * math.exp(q) * (rho - 1) ** 2 / (2 * EPSILON)
            elif name == "geo_mean":
                total = 0.0
                for u in kept:
                    d, sign = theta[b][u] - old[b][u], (a[b][u] > 0) - (a[b][u] < 0)
                    total += sign * min(sign * d, sign * oracle.clamp(d, -LOW, HIGH))
                row[t] = -sum(a[b][u] for u in kept) / n * math.exp(total / n)
        rows.append(row)
    return rows


def call(name: str, theta: Tensor, old: Tensor, a: Tensor, keep: Tensor) -> Tensor:
    clip = {"low": LOW, "high": HIGH}
    return {
        "ppo_clip": lambda: ppo_clip(theta, old, a, **clip),
        "reinforce": lambda: reinforce(theta, a),
        "dual_clip": lambda: per_token.dual_clip(theta, old, a, **clip, c=CAP),
        "gspo": lambda: per_token.gspo(theta, old, a, keep, **clip),
        "cispo": lambda: per_token.cispo(theta, old, a, **clip),
        "sapo": lambda: per_token.sapo(theta, old, a, tau_pos=TAU[0], tau_neg=TAU[1]),
        "dppo_tv": lambda: per_token.dppo("dppo_tv", theta, old, a, **clip, cap=CAP),
        "dppo_kl": lambda: per_token.dppo("dppo_kl", theta, old, a, **clip, cap=CAP),
        "geo_mean": lambda: per_token.geo_mean(theta, old, a, keep, **clip),
        "drpo": lambda: per_token.drpo(theta, old, a, epsilon=EPSILON),
    }[name]()


@st.composite
def updates(draw: st.DrawFn) -> tuple[list[Row], list[Row], list[Row], oracle.Masks]:
    """log π_θ, log π_old, A and keep; ratios on both sides of every bound, none on a kink."""
    b, t = draw(st.sampled_from([(2, 4), (3, 1), (1, 5), (1, 1)]))
    grid = lambda values: [[draw(st.sampled_from(values)) for _ in range(t)] for _ in range(b)]  # noqa: E731
    old = grid([-0.11, -0.5, -1.3, -4.0])
    moved = grid([-2.1, -0.31, -0.11, -0.013, 0.017, 0.13, 0.37, 1.7])
    theta = [[q + m for q, m in zip(*row, strict=True)] for row in zip(old, moved, strict=True)]
    return theta, old, grid([-2.0, -0.5, 0.0, 0.7, 1.5]), grid([True, True, True, False])


@pytest.mark.parametrize(
    "name", ["ppo_clip", "reinforce", "dual_clip", "gspo", "cispo", "sapo", "dppo_tv", "dppo_kl", "drpo", "geo_mean"]
)
def test_value_and_gradient(name: str) -> None:
    @oracle.examples(20)
    @given(updates())
    def check(given: tuple[list[Row], list[Row], list[Row], oracle.Masks]) -> None:
        at, old, a, keep = given
        theta = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        mask = torch.tensor(keep)
        got = call(name, theta, torch.tensor(old).double(), torch.tensor(a).double(), mask)
        expected = surrogate(name, at, at, old, a, keep)
        kept = torch.where(mask, got, 0)
        torch.testing.assert_close(kept, torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)
        kept.sum().backward()
        assert theta.grad is not None
        for b, t in ((b, t) for b, row in enumerate(keep) for t, k in enumerate(row) if k):
            step, totals = 1e-6, []
            for sign in (1, -1):
                moved = [list(row) for row in at]
                moved[b][t] += sign * step
                totals.append(sum(map(sum, surrogate(name, moved, at, old, a, keep))))
            assert theta.grad[b, t].item() == pytest.approx((totals[0] - totals[1]) / (2 * step), rel=1e-4, abs=1e-6)
        assert not theta.grad[~mask].any()

    check()


def test_kl_cov_penalises_the_largest_covariances() -> None:
    """cov = A·log π up to means: of four tokens a share of one half is two, those of covariance 4.5 and 0.5."""
    theta = torch.tensor([[-1.0, -2.0, -3.0, -4.0, 0.0]], requires_grad=True)
    a = torch.tensor([[3.0, 2.0, 1.0, 0.0, 99.0]])
    keep = torch.tensor([[True, True, True, True, False]])
    # means −2.5 and 1.5: cov 1.5·1.5, 0.5·0.5, −0.5·−0.5, −1.5·−1.5 = 2.25, 0.25, 0.25, 2.25
    old = theta.detach() - 0.25
    got = per_token.kl_cov(theta, old, a, keep, share=0.5, coef=COEF)
    plain = -a * math.exp(0.25)
    torch.testing.assert_close((got - plain)[0, :4], COEF * torch.tensor([0.25, 0.0, 0.0, 0.25]))
    got[keep].sum().backward()
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad[0, :4], plain[0, :4] + COEF * torch.tensor([1.0, 0.0, 0.0, 1.0]))


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
