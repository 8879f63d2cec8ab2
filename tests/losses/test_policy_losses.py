"""VESPO and FIPO against loops of NumPy over one answer at a time, written from the papers' formulas; DRPO, CPPO, CTPO
and DPPO against what the code of their authors gave."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig, LossType
from rlcorr.divergences import upper_quantile
from rlcorr.losses.policy_losses import LOSSES, Inputs, ctpo, discounted

Floats = NDArray[np.float64]
GOLDEN = Path(__file__).parent.parent / "support" / "golden"
UNIRL = json.loads((GOLDEN / "unirl_losses.json").read_text())
PAPERS = json.loads((GOLDEN / "paper_losses.json").read_text())
LOSS = LossConfig(numbers={"fipo_decay_rate": 3.0, "fipo_safety_threshold": 1.5})


def vespo_of(theta: Floats, old: Floats, a: Floats) -> tuple[Floats, Floats]:
    """Loss and derivative of one answer without gaps: φ(W) = W^k e^{λ − λW} is held constant."""
    w = math.exp(float(np.sum(theta - old)))
    k, decay = np.where(a >= 0, 2, 3), np.where(a >= 0, 3, 2)
    phi = w**k * np.exp(decay - decay * w)
    return -phi * a * theta, -phi * a


def fipo_of(theta: Floats, old: Floats, a: Floats) -> tuple[Floats, Floats]:
    rho, loss, slope = np.exp(theta - old), np.zeros(len(a)), np.zeros(len(a))
    for t in range(len(a)):
        future = sum(2 ** (-(j - t) / 3.0) * (theta[j] - old[j]) for j in range(t, len(a)))
        weight = min(max(math.exp(future), 1.0), 1.2)
        if a[t] < 0 and rho[t] > 1.5:
            weight = min(weight, 1.0)
        free, clipped = -a[t] * rho[t], -a[t] * min(max(rho[t], 0.8), 1.2)
        loss[t], slope[t] = weight * max(free, clipped), weight * free * (free >= clipped)
    return loss, slope


@st.composite
def answers(draw: st.DrawFn) -> list[tuple[Floats, Floats, Floats]]:
    """log π_θ, log π_old and A of up to three answers of different lengths; no ratio on a bound."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 9))
        old, moved, a = (
            np.array([draw(st.sampled_from(values)) for _ in range(n)])
            for values in (
                [-0.51, -0.9, -1.7, -4.0],
                [-0.7, -0.31, -0.013, 0.017, 0.13, 0.37, 0.47],
                [-2.0, -0.5, 0.0, 0.7],
            )
        )
        rows.append((old + moved, old, a))
    return rows


@pytest.mark.parametrize(("name", "of"), [("vespo", vespo_of), ("fipo", fipo_of)])
def test_value_and_gradient(name: LossType, of) -> None:
    @oracle.examples(60)
    @given(answers())
    def check(rows: list[tuple[Floats, Floats, Floats]]) -> None:
        longest = max(len(a) for _, _, a in rows)
        table = torch.zeros(4, len(rows), longest, dtype=torch.float64)
        for b, row in enumerate(rows):
            table[:3, b, : len(row[0])] = torch.from_numpy(np.stack(row))
            table[3, b, : len(row[0])] = 1
        keep, theta = table[3] > 0, table[0].clone().requires_grad_()
        config = CorrectionConfig(loss_type=name)
        got = torch.where(keep, LOSSES[config.loss_type].of(Inputs(theta, table[1], table[2], keep), LOSS, None), 0)
        got.sum().backward()
        assert theta.grad is not None
        for b, row in enumerate(rows):
            loss, slope = of(*row)
            np.testing.assert_allclose(got[b, : len(loss)].detach().numpy(), loss, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(theta.grad[b, : len(loss)].numpy(), slope, rtol=1e-6, atol=1e-9)
        assert not theta.grad[~keep].any()

    check()


def test_the_sums_are_those_of_a_loop() -> None:
    x = torch.arange(11, dtype=torch.float64)
    loop = [sum(0.7 ** (j - t) * j for j in range(t, 11)) for t in range(11)]
    torch.testing.assert_close(discounted(x, 0.7), torch.tensor(loop, dtype=torch.float64))
    assert upper_quantile(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool), 0.9).tolist() == [0, 0]
    assert upper_quantile(torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool), 0.9).tolist() == [0]


def padded(batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mask, log π_θ with a graph, log π_old and A, (B, T) each."""
    lengths = torch.tensor([len(row) for row in batch["theta"]])
    keep = torch.arange(int(lengths.max())) < lengths[:, None]
    theta, old, advantages = (
        torch.zeros(keep.shape, dtype=torch.float64).masked_scatter(
            keep, torch.tensor([x for row in batch[name] for x in row], dtype=torch.float64)
        )
        for name in ("theta", "old", "advantages")
    )
    return keep, theta.requires_grad_(), old, advantages


@pytest.mark.parametrize("batch", UNIRL["batches"], ids=range(len(UNIRL["batches"])))
def test_against_what_unirls_own_functions_gave(batch: dict[str, Any]) -> None:
    """DRPO and CPPO, values and derivatives: tests/peers/unirl_losses.py of commit dc1e367 wrote the file. CPPO casts
    probabilities to float32 there."""
    keep, theta, old, advantages = padded(batch)
    for case in batch["cases"]:
        name = case["loss_type"]
        numbers = LossConfig(numbers={f"{name}_{key}": number for key, number in case["settings"].items()})
        losses = LOSSES[name].of(Inputs(theta, old, advantages, keep), numbers, None)
        (gradient,) = torch.autograd.grad(losses[keep].sum(), theta)
        for ours, theirs in ((losses, case["loss"]), (gradient, case["gradient"])):
            torch.testing.assert_close(ours[keep], torch.tensor(theirs, dtype=torch.float64), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("batch", PAPERS["batches"], ids=range(len(PAPERS["batches"])))
def test_against_what_the_code_of_ctpo_and_of_skyrl_gave(batch: dict[str, Any]) -> None:
    """CTPO and SkyRL's DPPO, values and derivatives: tests/peers/paper_losses.py of commit dc1e367 wrote the file.
    SkyRL adds 1e-8 to the probabilities of the other tokens, where we clamp to 1e-8."""
    keep, theta, old, advantages = padded(batch)
    for case in batch["cases"]:
        name: LossType
        if case["name"] == "ctpo":
            name, numbers = "ctpo", LossConfig(numbers={f"ctpo_{key}": x for key, x in case["settings"].items()})
        else:
            kind, low, high = case["settings"]
            name = "dppo_tv" if kind == "binary_tv" else "dppo_kl"
            numbers = LossConfig(clip_ratio_low=low, clip_ratio_high=high, numbers={"dppo_ratio_cap": math.inf})
        losses = LOSSES[name].of(Inputs(theta, old, advantages, keep), numbers, None)
        if name != "ctpo":  # SkyRL writes −A ρ, we write −sg(ρ) A log π_θ: only the derivatives are the same
            assert (losses[keep] == 0).tolist() == [loss == 0 for loss in case["loss"]]
        else:
            torch.testing.assert_close(losses[keep], torch.tensor(case["loss"], dtype=torch.float64), rtol=1e-8, atol=0)
        (gradient,) = torch.autograd.grad(losses[keep].sum(), theta)
        wanted = torch.tensor(case["gradient"], dtype=torch.float64)
        tolerance = 1e-8 if name == "ctpo" else 1e-6  # SkyRL's exp is in float32
        torch.testing.assert_close(gradient[keep], wanted, rtol=tolerance, atol=1e-12)


def test_rejected_tokens_are_no_factor_of_ctpos_product() -> None:
    """Ratios 2, 8 and 2, of which the second is rejected: products 2 and 4 at the positions 1 and 2."""
    ratios, keep = torch.tensor([[2.0, 8.0, 2.0]]), torch.tensor([[True, False, True]])
    numbers = {"low": 9.0, "high": 9.0, "c": 9.0, "power": 0.0}
    losses = ctpo(ratios.log(), torch.zeros(1, 3), torch.ones(1, 3), keep, **numbers)
    assert losses[keep].tolist() == pytest.approx([-2.0, -4.0])
