import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlcorr.config import Aggregation, CorrectionConfig, LossConfig, LossType
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.gradients import toy
from rlcorr.gradients.toy import response_count
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import PRESETS
from rlcorr.types import TokenBatch

SUM = LossConfig(loss_agg_mode="token-sum")


SMALL = toy.world(3, 3)
_OLD = toy.random_policy(SMALL, 0)
POLICIES = toy.Policies(_OLD + toy.random_policy(SMALL, 1, 0.4), _OLD, _OLD + toy.random_policy(SMALL, 2, 0.1))
"""Off-policy twice over: the engine is not the trainer, and the trainer has moved since it scored."""
ON_OLD = replace(POLICIES, theta=POLICIES.old)
"""The first optimizer step: π_θ is still π_old."""
REWARDS = torch.randn(len(SMALL.tokens), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
LENGTHS = SMALL.mask.sum(-1).double()
SAMPLED = toy.probabilities(SMALL, POLICIES.rollout)
RATIOS = toy.log_probs(SMALL, POLICIES.old) - toy.log_probs(SMALL, POLICIES.rollout)
"""Their logarithms, (N, T)."""


def truth(correction: CorrectionConfig, loss: LossConfig | None = None) -> toy.GradientTruth:
    return toy.gradient_truth(SMALL, POLICIES, REWARDS, correction, loss)


def of_two(
    rewards: tuple[float, float], correction: CorrectionConfig, loss: LossConfig | None = None
) -> toy.GradientTruth:
    """T = 1, V = 2, π_rollout = (.2, .8), π = (.5, .5): ratios 2.5 and .625."""
    rollout, old = torch.tensor([[0.2, 0.8]]).double().log(), torch.zeros(1, 2, dtype=torch.float64)
    policies = toy.Policies(rollout, old, old)
    return toy.gradient_truth(toy.world(2, 1), policies, torch.tensor(rewards).double(), correction, loss)


def responses(vocabulary: int, length: int) -> set[tuple[int, ...]]:
    """By filtering all words: those that hold 0 only at their end, and are either ended or as long as can be."""
    words = itertools.chain(*(itertools.product(range(vocabulary), repeat=n) for n in range(1, length + 1)))
    return {w for w in words if 0 not in w[:-1] and (w[-1] == 0 or len(w) == length)}


# --- the world ---


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (3, 3), (5, 3)])
def test_every_response_is_there_once(vocabulary: int, length: int) -> None:
    where = toy.world(vocabulary, length)
    rows = [tuple(row[:n]) for row, n in zip(where.tokens.tolist(), where.mask.sum(-1).tolist(), strict=True)]
    assert len(rows) == len(set(rows)) == response_count(vocabulary, length)
    assert set(rows) == responses(vocabulary, length)
    policy = toy.random_policy(where, 0, spread=2.0)
    assert float(toy.probabilities(where, policy).sum()) == pytest.approx(1, abs=1e-12)
    assert float(toy.visits(where, policy)[0]) == pytest.approx(1, abs=1e-12)


def test_a_state_is_a_prefix() -> None:
    prefix_of: dict[int, tuple[int, ...]] = {}
    for row, mask, states in zip(SMALL.tokens.tolist(), SMALL.mask.tolist(), SMALL.states.tolist(), strict=True):
        for column in range(sum(mask)):
            assert prefix_of.setdefault(states[column], tuple(row[:column])) == tuple(row[:column])
    assert sorted(prefix_of) == list(range(SMALL.state_count))
    assert len(set(prefix_of.values())) == SMALL.state_count == 1 + 2 + 4


def test_kl_of_single_tokens() -> None:
    """T = 1: KL((.75, .25)‖(.5, .5)) = .75 log 1.5 + .25 log .5."""
    where = toy.world(2, 1)
    p, q = torch.tensor([[0.75, 0.25]]).double().log(), torch.zeros(1, 2, dtype=torch.float64)
    assert float(toy.kl(where, p, q)) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-15)
    assert float(toy.kl(where, q, p)) == pytest.approx(-0.5 * math.log(0.75) - 0.5 * math.log(0.25) - math.log(2))


# --- gradients of estimators, against one response after the other ---


def by_loops(correction: CorrectionConfig, loss: LossConfig) -> tuple[Tensor, float]:
    """E[g] and Σ Var[g] of −∇loss of batches of one response each; the loss must not divide by anything."""
    total, squares = torch.zeros_like(POLICIES.theta), 0.0
    for n, row in enumerate(SMALL.tokens.tolist()):
        tokens, states = torch.tensor(row)[SMALL.mask[n]], SMALL.states[n][SMALL.mask[n]]
        leaf = POLICIES.theta.clone().requires_grad_()
        log_p, old, rollout = (x.log_softmax(-1)[states, tokens][None] for x in (leaf, POLICIES.old, POLICIES.rollout))
        batch = TokenBatch(
            response_mask=torch.ones(1, len(tokens), dtype=torch.bool), rollout_log_probs=rollout, old_log_probs=old,
            advantages=REWARDS[n].expand(1, len(tokens)),
        )  # fmt: skip
        scored = batch.replace(old_log_probs=log_p.detach()) if correction.bypass_mode else batch
        value, _ = policy_loss(log_p, batch, correct(scored, correction), correction, loss)
        (g,) = torch.autograd.grad(-value, leaf)
        probability = float(rollout.sum().exp())
        total += probability * g
        squares += probability * float(g.square().sum())
    return total, squares - float(total.square().sum())


NORMALISED = {name for name, preset in PRESETS.items() if preset.config.rollout_is_batch_normalize}
CENTERED = {name for name, preset in PRESETS.items() if preset.loss.score_centering}  # the toy has no top-k lists


def assert_truth_is_that_of_loops(
    case: object, correction: CorrectionConfig,
    loss: LossConfig,
) -> None:  # fmt: skip
    got = truth(correction, loss)
    expectation, variance = by_loops(correction, loss)
    torch.testing.assert_close(got.expectation, expectation, rtol=0, atol=1e-10, msg=lambda text: f"{case}: {text}")
    assert got.variance == pytest.approx(variance, abs=1e-10), case


def test_presets() -> None:
    for name in sorted(set(PRESETS) - NORMALISED - CENTERED)[::4]:
        loss = replace(PRESETS[name].loss, loss_agg_mode="token-sum", rollout_kl_loss_agg_mode="token-sum")
        assert_truth_is_that_of_loops(name, PRESETS[name].config, loss)


LOSSES: list[LossType] = [
    "ppo_clip", "dual_clip", "gpg", "gspo", "cispo", "sapo", "geo_mean", "dppo_tv", "dppo_kl", "drpo", "vespo", "fipo",
    "cppo", "ctpo",
]  # fmt: skip


def test_every_loss() -> None:
    """Every second one in bypass mode, and prefix weights, which no preset has."""
    for bypass, loss_type in zip(itertools.cycle((False, True)), LOSSES[::2]):
        weights = None if bypass and loss_type != "gpg" else "token"
        correction = CorrectionConfig(rollout_is=weights, bypass_mode=bypass, loss_type=loss_type)
        assert_truth_is_that_of_loops((loss_type, bypass), correction, SUM)
    assert_truth_is_that_of_loops("prefix", CorrectionConfig(rollout_is="prefix"), SUM)


def test_a_loss_that_compares_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="clip_cov compares the tokens of a batch"):
        truth(CorrectionConfig(loss_type="clip_cov"))


def variance_of_a_quotient() -> float:
    """E‖u − n E[u]/E[n]‖², response by response: u = Σ_t min(r_t, 2) · reward · ∇ log π_θ(token), n its length. In the
    table of logits ∇ log π is e_token − π in the token's row; at another π_θ than π_old the loss has its ratio, too."""
    rollout, old, theta = (x.softmax(-1) for x in (POLICIES.rollout, POLICIES.old, POLICIES.theta))
    answers: list[tuple[float, Tensor, int]] = []
    for n, reward in enumerate(REWARDS.tolist()):
        u, q, size = torch.zeros_like(theta), 1.0, int(SMALL.mask[n].sum())
        for s, token in zip(SMALL.states[n][:size].tolist(), SMALL.tokens[n][:size].tolist(), strict=True):
            q *= float(rollout[s, token])
            ratio = float(theta[s, token] / old[s, token])
            if ratio <= 1.2 if reward > 0 else ratio >= 0.8:  # else clipped, and without a gradient
                c = ratio * min(float(old[s, token] / rollout[s, token]), 2.0) * reward
                u[s] -= c * theta[s]
                u[s, token] += c
        answers.append((q, u, size))
    mean = sum((q * u for q, u, _ in answers), torch.zeros_like(theta)) / sum(q * size for q, _, size in answers)
    return sum(q * float((u - size * mean).square().sum()) for q, u, size in answers)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_denominators_are_expectations(
    mode: Aggregation,
) -> None:
    """E[tokens] of a sampled response; one sequence; one sequence times the three columns."""
    divisor = {
        "token-mean": float((SAMPLED * LENGTHS).sum()), "seq-mean-token-sum": 1, "seq-mean-token-sum-norm": 3
    }[mode]  # fmt: skip
    settings = CorrectionConfig(rollout_is="token")
    whole = truth(settings, SUM)
    got = truth(settings, LossConfig(loss_agg_mode=mode))
    for name in ("expectation", "reference"):
        torch.testing.assert_close(getattr(got, name) * divisor, getattr(whole, name), rtol=1e-12, atol=1e-12)
    if mode == "token-mean":  # of a quotient of two sums: what a response adds, less its share of the mean
        whole_variance = variance_of_a_quotient()
    else:
        whole_variance = whole.variance
    assert got.variance * divisor**2 == pytest.approx(whole_variance)
    assert (got.relative_bias, got.cosine) == pytest.approx((whole.relative_bias, whole.cosine))


def test_normalised_weights_have_a_mean_of_1() -> None:
    """The factor is E[Σ_t w]/E[tokens] under the engine, here by hand; a constant factor divides the gradient."""
    plain = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2)
    d = RATIOS
    weight = (d.exp().clamp(max=1.2) * SMALL.mask).sum(-1)
    factor = float((SAMPLED * weight).sum() / (SAMPLED * LENGTHS).sum())
    assert abs(factor - 1) > 0.01
    before = truth(plain, SUM)
    after = truth(replace(plain, rollout_is_batch_normalize=True), SUM)
    torch.testing.assert_close(after.expectation * factor, before.expectation, rtol=1e-12, atol=1e-12)
    per_sequence = replace(plain, rollout_is="sequence", rollout_is_threshold=2.0)
    factor = float((SAMPLED * d.sum(-1).exp().clamp(max=2.0)).sum())
    before = truth(per_sequence, SUM)
    after = truth(replace(per_sequence, rollout_is_batch_normalize=True), SUM)
    torch.testing.assert_close(after.expectation * factor, before.expectation, rtol=1e-12, atol=1e-12)


# --- what is known to be true ---


def test_the_reference_is_the_gradient_of_the_expected_reward() -> None:
    leaf = POLICIES.theta.clone().requires_grad_()
    table = leaf.log_softmax(-1)
    value = sum(
        torch.stack([table[s, a] for s, a, m in zip(*row, strict=True) if m]).sum().exp() * reward
        for row, reward in zip(
            zip(SMALL.states.tolist(), SMALL.tokens.tolist(), SMALL.mask.tolist(), strict=True), REWARDS, strict=True
        )
    )
    (expected,) = torch.autograd.grad(torch.as_tensor(value), leaf)
    got = truth(CorrectionConfig(), SUM).reference
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(toy.policy_gradient(SMALL, POLICIES.theta, REWARDS), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-mean"])
def test_sequence_weights_without_a_bound_are_unbiased(
    mode: Aggregation,
) -> None:
    loss = LossConfig(loss_agg_mode=mode)
    decoupled = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
    assert toy.gradient_truth(SMALL, ON_OLD, REWARDS, decoupled, loss).bias < 1e-12
    bypass = CorrectionConfig(
        rollout_is="sequence", bypass_mode=True, loss_type="reinforce", rollout_is_threshold=math.inf
    )
    assert truth(bypass, loss).bias < 1e-12


def test_truncation_by_hand() -> None:
    """Of rewards (1, 0), with ratios capped at 2: E[g] = .2 · 2 · 1 · (e_0 − π) = (.2, −.2); the true gradient is
    π_0 (e_0 − π) = (.25, −.25): the cap takes a fifth. Var = .2 · ‖2 (e_0 − π)‖² − ‖E[g]‖² = .2 · 2 − .08.

    ⟨E g, g*⟩ = .1, ‖g*‖² = .125, ‖E g‖² = .08. η(B) = .1²/(.125 (.08 + .32/B)): 1 without noise, for a cap does not
    turn a gradient in one parameter; .2 with one response. Against the gradient, none."""
    got = of_two((1.0, 0.0), CorrectionConfig(rollout_is="token"))
    torch.testing.assert_close(got.expectation, torch.tensor([[0.2, -0.2]]).double())
    torch.testing.assert_close(got.reference, torch.tensor([[0.25, -0.25]]).double())
    assert (got.relative_bias, got.cosine, got.scale) == pytest.approx((0.2, 1.0, 0.8))
    assert got.variance == pytest.approx(0.32)
    assert [got.progress(size) for size in (1, 4, math.inf)] == pytest.approx([0.2, 0.5, 1])
    assert replace(got, expectation=-got.expectation).progress(4) == 0
    assert replace(got, expectation=torch.zeros_like(got.expectation), variance=0.0).progress(4) == 0


# --- KL estimators as losses ---


REF = toy.random_policy(SMALL, 5)


def test_on_policy_gradients_of_the_estimators() -> None:
    theta = POLICIES.theta
    forward, reverse = (toy.token_kl_gradient(SMALL, theta, REF, reverse=r) for r in (False, True))
    assert (forward - reverse).norm() > 0.1
    assert toy.kl_gradient(SMALL, theta, REF, "k1").norm() < 1e-14
    for name in ("k2", "k1+", "k3+", "abs+"):
        torch.testing.assert_close(toy.kl_gradient(SMALL, theta, REF, name), forward, rtol=0, atol=1e-12)
    torch.testing.assert_close(toy.kl_gradient(SMALL, theta, REF, "k3"), reverse, rtol=0, atol=1e-12)
