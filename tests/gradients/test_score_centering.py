"""Score centering on tables of logits, where ∇log p(v) is the unit vector of v minus p: loops of plain NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.score_centering import centered_losses, drift_report
from rlcorr.gradients.sketch import NextTokens
from rlcorr.presets import preset

CONFIGS = {
    "no weights": CorrectionConfig(),
    "TIS": CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2),
    "IcePop": CorrectionConfig(
        rollout_is="token", rollout_is_threshold=1.3, rollout_is_threshold_lower=0.7, rollout_is_mode="mask"
    ),
}


def tables(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logits of five places over four tokens; the engine's differ a little."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(5, 4))
    return logits, logits + 0.4 * rng.normal(size=(5, 4))


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def weight(name: str, r: float) -> float:
    return {"no weights": 1.0, "TIS": min(r, 1.2), "IcePop": r * (0.7 <= r <= 1.3)}[name]


def centered(name: str, p: NDArray[np.float64], q: NDArray[np.float64], a: int) -> NDArray[np.float64]:
    """w_a s_a − Σ_v q_v w_v s_v at one place, of an advantage of 1."""
    scores = np.eye(len(p)) - p
    ws = [weight(name, p[v] / q[v]) * scores[v] for v in range(len(p))]
    return ws[a] - sum(q[v] * ws[v] for v in range(len(p)))


VIME = json.loads((Path(__file__).parent.parent / "support" / "golden" / "vime_centering.json").read_text())
"""By tests/peers/vime_centering.py, in float32; its loss has other values, as it takes off E_p[∇log p] = 0 as well."""


@pytest.mark.parametrize("case", VIME["cases"], ids=range(len(VIME["cases"])))
def test_the_gradient_is_that_of_vimes_own_code(case: dict[str, Any]) -> None:
    for name, theirs in zip(CONFIGS, case["gradients"], strict=True):
        leaf = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
        engine = torch.tensor(case["engine"], dtype=torch.float64).log_softmax(-1)
        advantages = torch.tensor(case["advantages"], dtype=torch.float64)
        tokens = torch.tensor(case["tokens"])
        centered_losses(leaf.log_softmax(-1), engine, tokens, advantages, CONFIGS[name]).sum().backward()
        assert leaf.grad is not None
        np.testing.assert_allclose(leaf.grad.numpy(), theirs, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_gradient_is_that_of_the_formula(name: str) -> None:
    for seed in range(20):
        logits, engine = tables(seed)
        p, q = softmax(logits), softmax(engine)
        leaf = torch.tensor(logits, requires_grad=True)
        drawn, a = torch.tensor([0, 1, 2, 3, seed % 4]), torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]).double()
        losses = centered_losses(leaf.log_softmax(-1), torch.tensor(q).log(), drawn, a, CONFIGS[name])
        losses.sum().backward()
        assert leaf.grad is not None
        for place in range(5):
            expected = -a[place].item() * centered(name, p[place], q[place], int(drawn[place]))
            np.testing.assert_allclose(leaf.grad[place].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_constant_advantage_moves_nothing(name: str) -> None:
    """Without centering it would move by the drift, which is not 0 where p ≠ q."""
    logits, engine = tables(1)
    q, moved = torch.tensor(engine).softmax(-1), torch.zeros(5, 4, dtype=torch.float64)
    for token in range(4):
        leaf = torch.tensor(logits, requires_grad=True)
        drawn = torch.full((5,), token)
        losses = centered_losses(leaf.log_softmax(-1), q.log(), drawn, torch.ones(5).double(), CONFIGS[name])
        moved += q[:, token : token + 1] * torch.autograd.grad(losses.sum(), leaf)[0]
    torch.testing.assert_close(moved, torch.zeros_like(moved), atol=1e-12, rtol=0)


def places_of(logits: NDArray[np.float64], engine: NDArray[np.float64]) -> NextTokens:
    p = softmax(logits)
    scores = np.eye(4)[None] - p[:, None, :]
    return NextTokens(torch.tensor(np.log(p)), torch.tensor(scores), None, torch.tensor(np.log(softmax(engine))))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_drift(name: str) -> None:
    logits, engine = tables(2)
    p, q = softmax(logits), softmax(engine)
    ws = np.array(
        [[weight(name, p[i, v] / q[i, v]) * (np.eye(4)[v] - p[i]) for v in range(4)] for i in range(5)]
    )  # (place, token, logit)
    drift = (q[:, :, None] * ws).sum(1)
    size = np.sqrt((q * (ws**2).sum(-1)).sum(-1).mean())
    got = drift_report(places_of(logits, engine), CONFIGS[name], replicates=5)
    assert got.drift.value == pytest.approx(np.linalg.norm(drift.mean(0)) / size)
    assert got.of_place.value == pytest.approx(np.sqrt((drift**2).sum(-1).mean()) / size)


def test_there_is_no_drift_on_policy_or_with_the_whole_ratio() -> None:
    """E_p[∇log p] = 0, and E_q[(p/q) ∇log p] is the same."""
    logits, engine = tables(3)
    whole = CorrectionConfig(rollout_is="token", rollout_is_threshold=float("inf"))
    assert drift_report(places_of(logits, logits), CorrectionConfig(), replicates=2).drift.value < 1e-7
    assert drift_report(places_of(logits, engine), whole, replicates=2).drift.value < 1e-7
    assert drift_report(places_of(logits, engine), CorrectionConfig(), replicates=2).drift.value > 0.01


def test_a_token_that_the_engine_never_samples_costs_nothing() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.5, 0.5, 0.0]]).log()
    loss = centered_losses(p, q, torch.tensor([0]), torch.ones(1), CONFIGS["TIS"])
    # w = 1 and 0.5, so −[log ½ − ½ log ½ − ½ · ½ · log ¼] = −[½ log ½ − ½ log ½]
    assert loss.item() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("name", ["decoupled_seq_is", "decoupled_geo_rs"])
def test_what_sees_a_sequence_is_refused(name: str) -> None:
    logits, engine = tables(4)
    with pytest.raises(UsageError, match="uses one position"):
        drift_report(places_of(logits, engine), preset(name))
    with pytest.raises(UsageError, match="no distribution of π_rollout"):
        drift_report(NextTokens(torch.zeros(1, 2), torch.zeros(1, 2, 1)), CorrectionConfig())
