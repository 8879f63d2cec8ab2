"""Places are the states of a toy policy, whose scores e_token − π are known: autograd gives every gradient."""

import pytest
import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients import toy
from rlcorr.gradients.kl_losses import EXPECTED, kl_report
from rlcorr.gradients.sketch import KLGradients, NextTokens
from rlcorr.losses.kl import kl_penalty

WORLD = toy.world(5, 3)
THETA, REF, ROLLOUT = (toy.random_policy(WORLD, seed) for seed in range(3))


def table(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)


def scores() -> Tensor:
    """(S, V, S · V): row s of the gradient of log π(a | s) is e_a − π(· | s), the others are 0."""
    count, vocabulary = THETA.shape
    per_row = torch.zeros(count, vocabulary, count, vocabulary, dtype=torch.float64)
    for s in range(count):
        per_row[s, :, s] = torch.eye(vocabulary).double() - THETA[s].softmax(-1)
    return per_row.flatten(2).float()


PLACES = NextTokens(table(THETA).float(), scores(), table(REF).float(), table(ROLLOUT).float())


def gradients(estimator: str, target: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """E[g], ∇KL(π‖target), ∇KL(target‖π) and the spread of one token's g, by autograd in the logits; means over S."""
    leaf = THETA.clone().requires_grad_()
    log_p, log_t, q = table(leaf), table(target), sampled.softmax(-1)
    size = len(THETA)
    estimate = (q * kl_penalty(log_p, log_t, estimator)).sum() / size
    forward = (log_p.exp() * (log_p - log_t)).sum() / size
    reverse = (log_t.exp() * (log_t - log_p)).sum() / size
    g_estimate, g_forward, g_reverse = (
        torch.autograd.grad(value, leaf, retain_graph=True)[0].flatten() for value in (estimate, forward, reverse)
    )
    squares = 0.0
    for s in range(size):
        for a in range(THETA.shape[1]):
            (g,) = torch.autograd.grad(kl_penalty(log_p, log_t, estimator)[s, a], leaf, retain_graph=True)
            squares += float(q[s, a] * g.square().sum()) / size
    return g_estimate, g_forward, g_reverse, (squares - float(g_estimate.square().sum())) ** 0.5


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, 0))


@pytest.mark.parametrize(
    ("estimator", "target", "on_policy"), [("abs", "ref", True), ("k2", "rollout", False), ("k3+", "ref", False)]
)
def test_the_gradient_of_every_estimator(estimator: str, target: str, on_policy: bool) -> None:
    got = kl_report(PLACES, estimator, target, on_policy=on_policy)  # pyright: ignore[reportArgumentType]
    against = {"ref": REF, "rollout": ROLLOUT}[target]
    g, forward, reverse, spread = gradients(estimator, against, THETA if on_policy else ROLLOUT)
    assert got.cosine.value == pytest.approx(cosine(g, forward), abs=1e-4)
    assert got.reverse_cosine.value == pytest.approx(cosine(g, reverse), abs=1e-4)
    assert got.length.value == pytest.approx(float(g.norm() / forward.norm()), rel=1e-4)
    assert got.noise.value == pytest.approx(spread / float(forward.norm()), rel=1e-3)
    assert got.cosine.low <= got.cosine.value <= got.cosine.high


@pytest.mark.parametrize("target", ["ref", "rollout"])
def test_gradients_of_divergences_are_enough_for_the_common_estimators(target: str) -> None:
    """KL(π‖τ) = Σ π (log π − log τ) and KL(τ‖π) = Σ τ (log τ − log π), by autograd in the logits of each state."""
    leaf = THETA.clone().requires_grad_()
    log_p, parts = table(leaf), []
    for log_t in (table(ROLLOUT), table(REF)):
        for kl in ((log_p.exp() * (log_p - log_t)).sum(-1), (log_t.exp() * (log_t - log_p)).sum(-1)):
            rows = [torch.autograd.grad(one, leaf, retain_graph=True)[0].flatten() for one in kl]
            parts.append(torch.stack(rows).float())
    sums = KLGradients(*parts)
    for estimator in EXPECTED:
        got, whole = (kl_report(one, estimator, target) for one in (sums, PLACES))  # pyright: ignore[reportArgumentType]
        for name in ("length",) if estimator == "k1" else ("cosine", "length", "reverse_cosine"):  # 0 has no direction
            a, b = vars(got)[name], vars(whole)[name]
            assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=1e-4), (estimator, name)
        assert got.noise.value != got.noise.value  # NaN: it takes the score of each token
    with pytest.raises(UsageError, match="only the gradients of KL"):
        kl_report(sums, "abs", target)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="no distribution of π_ref"):
        kl_report(KLGradients(*parts[:2]), "k2")


def test_a_token_that_the_engine_cuts_off_counts_nothing() -> None:
    """top-p leaves two of three tokens: KL(π‖rollout) is infinite, and what is left is a finite number."""
    engine = torch.tensor([[0.0, 0.0, -torch.inf]]).log_softmax(-1)
    old = torch.tensor([[0.5, 0.3, 0.2]]).log()
    scores = (torch.eye(3) - old.exp())[None]
    got = kl_report(NextTokens(old, scores, None, engine), "k3", "rollout", on_policy=False)
    assert torch.tensor([got.cosine.value, got.length.value, got.noise.value]).isfinite().all()


def test_what_is_not_recorded_is_refused() -> None:
    bare = NextTokens(PLACES.log_probs, PLACES.scores)
    with pytest.raises(UsageError, match="no distribution of π_ref"):
        kl_report(bare, "k2")
    with pytest.raises(UsageError, match="no distribution of π_rollout"):
        kl_report(NextTokens(PLACES.log_probs, PLACES.scores, PLACES.ref_log_probs), "k2", on_policy=False)
