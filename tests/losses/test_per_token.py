"""Losses per token: values against the scalar oracle, gradients against its central differences."""

import math
from collections.abc import Callable

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcorr.losses import per_token
from rlcorr.losses.per_token import clipped_value, covariance, ppo_clip, reinforce

CLIP = {"low": 0.2, "high": 0.2}

A_FEW = st.floats(-3, 3).map(lambda x: round(x, 3))


def slope(f: Callable[[float], float], x: float) -> float:
    step = 1e-6
    return (f(x + step) - f(x - step)) / (2 * step)


def value_and_gradient(f: Callable[[Tensor], Tensor], x: float) -> tuple[float, float]:
    at = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = f(at)
    value.backward()
    assert at.grad is not None
    return value.item(), at.grad.item()


def double(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


# --- per token ---


@oracle.examples(120)
@given(A_FEW, A_FEW, st.sampled_from([(0.2, 0.2), (0.2, 0.28), (0.5, 2.0)]))
def test_ppo_clip(log_ratio: float, advantage: float, clip: tuple[float, float]) -> None:
    low, high = clip
    old = -4.0

    def expected(log_prob: float) -> float:
        return oracle.ppo_clip(log_prob, old, advantage, low, high)

    def got(log_prob: Tensor) -> Tensor:
        return ppo_clip(log_prob, double(old), double(advantage), low=low, high=high)

    value, gradient = value_and_gradient(got, old + log_ratio)
    assert value == pytest.approx(expected(old + log_ratio), rel=1e-9, abs=1e-12)
    on_a_kink = any(abs(math.exp(log_ratio) - edge) < 1e-3 for edge in (1 - low, 1 + high))
    if not on_a_kink:
        assert gradient == pytest.approx(slope(expected, old + log_ratio), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("rho", "advantage", "value", "gradient"),
    [
        (1.5, 1.0, -1.2, 0.0),  # a good token already 50 % more likely: clipped, no gradient
        (1.5, -1.0, 1.5, 1.5),  # a bad token that became likelier: pushed back in full
        (0.5, 1.0, -0.5, -0.5),  # a good token that became rarer: pulled up in full
        (0.5, -1.0, 0.8, 0.0),  # a bad token already half as likely: clipped, no gradient
        (1.1, 2.0, -2.2, -2.2),  # inside the clip: −A ρ, and its slope in log π_θ is −A ρ too
    ],
)
def test_the_four_corners_of_the_clip(rho: float, advantage: float, value: float, gradient: float) -> None:
    got = value_and_gradient(lambda x: ppo_clip(x, double(0.0), double(advantage), **CLIP), math.log(rho))
    assert got == pytest.approx((value, gradient))


def test_ppo_clip_stays_finite_at_extremes() -> None:
    """ρ stops at e²⁰; for A < 0 the loss is then large but finite."""
    log_probs = torch.tensor([0.0, -1000.0, 0.0], requires_grad=True)
    loss = ppo_clip(log_probs, torch.tensor([-1000.0, 0.0, -math.inf]), -torch.ones(3), **CLIP)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([math.exp(20), 0.8, math.exp(20)], rel=1e-5)
    assert log_probs.grad is not None
    assert log_probs.grad.isfinite().all()


@oracle.examples(40)
@given(A_FEW, A_FEW)
def test_reinforce(log_prob: float, advantage: float) -> None:
    value, gradient = value_and_gradient(lambda x: reinforce(x, double(advantage)), log_prob)
    assert (value, gradient) == pytest.approx((-advantage * log_prob, -advantage))


@oracle.examples(100)
@given(A_FEW, A_FEW, A_FEW, st.sampled_from([0.2, 1.0]))
def test_clipped_value(value: float, old: float, target: float, clip: float) -> None:
    def expected(v: float) -> float:
        return oracle.clipped_value(v, old, target, clip)

    got, gradient = value_and_gradient(lambda v: clipped_value(v, double(old), double(target), clip=clip), value)
    assert got == pytest.approx(expected(value), abs=1e-12)
    left, right = (expected(value + h) - expected(value) for h in (-1e-4, 1e-4))
    if abs(left + right) < 1e-6:  # no kink here: both one-sided slopes agree
        assert gradient == pytest.approx(slope(expected, value), rel=1e-5, abs=1e-6)


def test_the_value_loss_takes_the_worse_of_the_two() -> None:
    """V = 3, V_old = 0, R = 2, clip 1: clip(V) = 1, so max((3−2)², (1−2)²)/2 = 0.5. With R = 3: max(0, 4)/2 = 2."""
    three, zero = double(3.0), double(0.0)
    assert clipped_value(three, zero, double(2.0), clip=1.0).item() == 0.5
    assert clipped_value(three, zero, double(3.0), clip=1.0).item() == 2.0


# --- every loss on a batch ---

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
            if name == "dual_clip":
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


@pytest.mark.parametrize("name", ["dual_clip", "gspo", "cispo", "sapo", "dppo_tv", "dppo_kl", "drpo", "geo_mean"])
def test_value_and_gradient(name: str) -> None:
    @oracle.examples(40)
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


def test_dppo_looks_only_where_the_advantage_pushes() -> None:
    """π_old = 0.5. 1 and 0.9 are beyond 0.5 + 0.3, 0.1 beyond 0.5 − 0.2: masked only if A pushes further that way."""
    theta = torch.tensor([[1.0, 0.9, 0.1, 0.1]]).log().requires_grad_()
    old, a = torch.full((1, 4), 0.5).log(), torch.tensor([[1.0, -1.0, -1.0, 1.0]])
    loss = per_token.dppo("dppo_tv", theta, old, a, low=0.2, high=0.3, cap=20.0)
    assert (loss != 0).tolist() == [[False, True, False, True]]


def test_the_cap_of_dppo_is_ours_to_choose() -> None:
    """verl documents a cap of 20 and runs with 3, the default of another loss: ρ = 5 counts 5 here and 3 there."""
    theta, old = torch.tensor([[-1.0]]), torch.tensor([[-1.0 - math.log(5)]])
    wide = {"low": 1.0, "high": 1.0}
    assert per_token.dppo("dppo_tv", theta, old, torch.ones(1, 1), **wide, cap=20.0).item() == pytest.approx(5)
    assert per_token.dppo("dppo_tv", theta, old, torch.ones(1, 1), **wide, cap=3.0).item() == pytest.approx(3)


# --- the covariance losses ---


def test_covariance() -> None:
    """A = 1, 3 and log π = −1, −3, both with mean 2 and −2 over what is kept: (−1)(1) = (1)(−1) = −1."""
    got = covariance(
        torch.tensor([[-1.0, -3.0, 9.0]]), torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
    )
    assert got[0, :2].tolist() == [-1, -1]


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


def test_equal_covariances_do_not_widen_the_share() -> None:
    """One advantage for all: every covariance is 0, and a share of 0.1 of a hundred tokens is still ten."""
    theta, a, keep = -torch.rand(10, 10), torch.ones(10, 10), torch.ones(10, 10, dtype=torch.bool)
    got = per_token.kl_cov(theta, theta - 1, a, keep, share=0.1, coef=1.0)
    assert (got > -math.e + 0.5).sum() == 10


def test_geo_mean_stays_finite_at_extremes() -> None:
    theta = torch.tensor([[-1.0]], requires_grad=True)
    loss = per_token.geo_mean(
        theta, torch.tensor([[-99.0]]), -torch.ones(1, 1), torch.ones(1, 1).bool(), low=0.2, high=0.3
    )
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.exp(20))
    assert theta.grad is not None
    assert theta.grad.isfinite().all()


def test_a_small_share_is_still_one_token() -> None:
    """A tenth of four tokens. Their covariances are 2.25, 0.25, 0.25, 2.25; of equals the first is taken."""
    theta, a = torch.tensor([[-1.0, -2.0, -3.0, -4.0]]), torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    got = per_token.kl_cov(theta, theta - 1, a, torch.ones(1, 4).bool(), share=0.1, coef=1.0)
    assert (got + a * math.e).tolist()[0] == pytest.approx([1, 0, 0, 0], abs=1e-6)


def test_gspo_stops_at_e_to_the_ten() -> None:
    loss = per_token.gspo(
        torch.tensor([[-1.0]]), torch.tensor([[-13.0]]), -torch.ones(1, 1), torch.ones(1, 1).bool(), **CLIP
    )
    assert loss.item() == pytest.approx(math.exp(10))


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


def test_clip_cov_leaves_clipped_tokens_and_other_covariances_alone() -> None:
    """ρ = e^0.5 with A > 0 is clipped already; without candidates nothing is dropped, though at least one could be."""
    theta = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    a, keep = torch.tensor([[3.0, 2.0, 1.0, 0.0]]) + 0.1, torch.ones(1, 4, dtype=torch.bool)
    for old, bounds in ((theta - 0.5, (2.0, 5.0)), (theta, (5.0, 9.0))):
        got = per_token.clip_cov(theta, old, a, keep, low=0.2, high=0.2, share=1.0, bounds=bounds)
        expected = ppo_clip(theta, old, a, **CLIP)
        # Token 3 (covariance 2.25, A = 0.1 > 0) is clipped like token 0.
        torch.testing.assert_close(got, expected)


def test_clip_cov_leaves_tokens_clipped_from_below_alone() -> None:
    """A < 0 leaves the covariances 2.25, 0.25, 0.25, 2.25 as they are. At ρ = 1 the outer two are dropped; at
    ρ = e^−0.5 < 0.8 all are clipped already."""
    theta, keep = torch.tensor([[-1.0, -2.0, -3.0, -4.0]]), torch.ones(1, 4, dtype=torch.bool)
    a = torch.tensor([[-6.0, -7.0, -8.0, -9.0]])
    for old, expected in ((theta, [0, 7, 8, 0]), (theta + 0.5, [4.8, 5.6, 6.4, 7.2])):
        got = per_token.clip_cov(theta, old, a, keep, low=0.2, high=0.2, share=1.0, bounds=(2.0, 5.0))
        assert got[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("bounds", "dropped"), [((2.0, 5.0), [0, 3]), ((2.25, 5.0), []), ((0.25, 2.25), [])])
def test_the_bounds_of_clip_cov_are_outside(bounds: tuple[float, float], dropped: list[int]) -> None:
    """Covariances 2.25, 0.25, 0.25, 2.25, and losses 6, 7, 8, 9 where they are not dropped."""
    theta, a = torch.tensor([[-1.0, -2.0, -3.0, -4.0]]), torch.tensor([[-6.0, -7.0, -8.0, -9.0]])
    keep = torch.ones(1, 4, dtype=torch.bool)
    got = per_token.clip_cov(theta, theta, a, keep, low=0.2, high=0.2, share=1.0, bounds=bounds)
    assert got[0].tolist() == [0 if i in dropped else 6 + i for i in range(4)]


def test_a_dropped_token_without_an_advantage_is_zero() -> None:
    """Covariances 2.25, 0.25, 0.25, 2.25, the last with A = 0, whose loss is 0 before it is dropped too."""
    theta, a = torch.tensor([[-1.0, -2.0, -3.0, -4.0]]), torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    keep = torch.ones(1, 4, dtype=torch.bool)
    got = per_token.clip_cov(theta, theta, a, keep, low=0.2, high=0.2, share=1.0, bounds=(2.0, 5.0))
    assert got[0].tolist() == [0, -2, -1, 0]


def test_covariance_losses_of_nothing() -> None:
    empty, keep = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)
    assert per_token.kl_cov(empty, empty, empty, keep, share=0.5, coef=1.0).shape == (0, 3)
    none = torch.zeros(1, 2)
    assert per_token.kl_cov(none, none, none, torch.zeros(1, 2, dtype=torch.bool), share=0.5, coef=1.0).tolist() == [
        [0, 0]
    ]
