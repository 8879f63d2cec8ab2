"""Losses against central differences of the scalar oracle, and whole policy losses against verl's recorded ones."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import VERL, batch, config, tensor
from torch import Tensor

from rlcorr import correct
from rlcorr.config import Denominator
from rlcorr.losses import clipped_value, ppo_clip, reinforce, token_mean

RESULTS = VERL["policy_loss"]["results"]
CLIP = {"low": 0.2, "high": 0.2}
DENOMINATORS: tuple[Denominator, ...] = ("fixed", "kept")

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


# --- averaging ---


@pytest.mark.parametrize(("denominator", "value", "share"), [("fixed", 0.75, 0.25), ("kept", 1.5, 0.5)])
def test_the_two_denominators(denominator: Denominator, value: float, share: float) -> None:
    """Losses 1 and 2 are kept, 5 and 7 are rejected, NaN is padding: 3/4 or 3/2."""
    loss = torch.tensor([[1.0, 2.0, 5.0, 7.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, True, True, True, False]])
    keep = torch.tensor([[True, True, False, False, False]])
    got = token_mean(loss, keep, mask, denominator)
    got.backward()
    assert got.item() == value
    assert loss.grad is not None
    assert loss.grad.tolist() == [[share, share, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("tokens", ["all rejected", "no tokens", "no rows"])
def test_nothing_kept_is_zero_with_a_graph(denominator: Denominator, tokens: str) -> None:
    """verl's token-mean is NaN here, unless the trainer passes a token count."""
    parameter = torch.tensor(2.0, requires_grad=True)
    mask = torch.full((0 if tokens == "no rows" else 2, 3), tokens == "all rejected")
    loss = token_mean(parameter * torch.ones(mask.shape), torch.zeros_like(mask), mask, denominator)
    loss.backward()
    assert loss.item() == 0
    assert parameter.grad is not None
    assert parameter.grad.item() == 0


def agg_loss() -> list[Any]:
    cases = [c for c in VERL["agg_loss"] if c["mode"] == "token-mean"]
    # Without a count verl divides by the tokens of the mask, as ours does when all are kept.
    return [c for c in cases if set(c["kwargs"]) <= {"loss_scale_factor"}]


@pytest.mark.parametrize(("case", "denominator"), list(itertools.product(agg_loss(), DENOMINATORS)))
def test_token_mean_like_verl(case: Any, denominator: Denominator) -> None:
    loss = tensor(VERL["agg_loss_input"]["loss_mat"])
    if "nan_at_masked" in case:
        loss[tuple(case["nan_at_masked"])] = math.nan
    loss.requires_grad_()
    mask = tensor(VERL["agg_loss_input"]["masks"][case["mask"]]).bool()
    got = token_mean(loss, mask, mask, denominator)
    got.backward()
    assert loss.grad is not None
    torch.testing.assert_close(loss.grad, tensor(case["grad"]) if "grad" in case else mask / mask.sum())
    # verl: 0/0 for the empty mask.
    assert case["value"] == "nan" if case["mask"] == "all_zero" else got.item() == pytest.approx(case["value"])
    assert got.isfinite()


# --- whole policy losses ---


def inputs(case: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log π_θ, log π_old, advantages, weights: verl's record uses the case's old log-probs as π_θ."""
    given, extra = batch(case), VERL["policy_loss"]["inputs"][case]
    assert given.old_log_probs is not None
    advantages, weights = tensor(extra["advantages"]), tensor(extra["rollout_is_weights"])
    return given.old_log_probs.clone().requires_grad_(), given.rollout_log_probs, advantages, weights


def assert_like(result: Any, loss: Tensor, log_probs: Tensor) -> None:
    loss.backward()
    assert log_probs.grad is not None
    torch.testing.assert_close(log_probs.grad, tensor(result["grad_log_prob"]), rtol=2e-5, atol=1e-6)
    if result["value"] == "nan":  # everything rejected: verl divides 0 by 0
        assert loss.item() == 0
    else:
        assert loss.item() == pytest.approx(result["value"], rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("result", [r for r in RESULTS if r["loss"] in ("vanilla", "gpg")])
@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_policy_loss_like_verl(result: Any, denominator: Denominator) -> None:
    """vanilla and gpg are ppo_clip and reinforce; verl's dual clip is idle here, since no ratio passes 3."""
    log_probs, old, advantages, weights = inputs(result["case"])
    mask = batch(result["case"]).response_mask
    assert result.get("metrics", {}).get("actor/pg_clipfrac_lower", 0) == 0
    vanilla = result["loss"] == "vanilla"
    loss = ppo_clip(log_probs, old, advantages, **CLIP) if vanilla else reinforce(log_probs, advantages)
    loss = loss * weights if result["weighted"] else loss
    assert_like(result, token_mean(loss, mask, mask, denominator), log_probs)


@pytest.mark.parametrize("result", [r for r in RESULTS if r["loss"] == "bypass_mode"])
def test_bypass_like_verl(result: Any) -> None:
    """Correction and loss together: weights and rejection follow π_θ/π_rollout, PPO-clip ignores the weights.

    verl's denominator is what the trainer passes: every token before rejection, or else those that are kept.
    """
    log_probs, rollout, advantages, _ = inputs(result["case"])
    settings = config(result["rollout_correction"])
    given = batch(result["case"])
    corrected = correct(given.replace(old_log_probs=log_probs.detach()), settings)
    if settings.loss_type == "reinforce":
        loss = reinforce(log_probs, advantages) * corrected.weights
    else:
        loss = ppo_clip(log_probs, rollout, advantages, **CLIP)
    denominator: Denominator = "fixed" if result["global_batch_info"] else "kept"
    assert_like(result, token_mean(loss, corrected.keep_mask, given.response_mask, denominator), log_probs)
