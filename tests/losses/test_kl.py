"""KL penalties: values and gradients against verl's recorded ones and the scalar oracle; where verl differs, both."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import VERL, tensor
from torch import Tensor

from rlcorr.config import KL_ESTIMATORS
from rlcorr.errors import UsageError
from rlcorr.losses.kl import kl_penalty

GOLDEN = VERL["kl_penalty"]["entries"]


def penalty(delta: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Value and both gradients at log π_θ = δ, log π_ref = 0."""
    ours, reference = delta.clone().requires_grad_(), torch.zeros_like(delta).requires_grad_()
    value = kl_penalty(ours, reference, name)
    value.sum().backward()
    assert ours.grad is not None
    assert reference.grad is not None
    return value.detach(), ours.grad, reference.grad


@oracle.examples(150)
@given(st.floats(-30, 30) | st.sampled_from([0.0, 20.0, -20.0, 1e-3, -1e-3]), st.sampled_from(KL_ESTIMATORS))
def test_value_and_gradient(delta: float, name: str) -> None:
    value, gradient, to_reference = penalty(torch.tensor(delta, dtype=torch.float64), name)
    base = name.removesuffix("+")
    assert value.item() == pytest.approx(oracle.kl_penalty(delta, base), rel=1e-8, abs=1e-12)
    assert gradient.item() == pytest.approx(oracle.kl_gradient(delta, name), rel=1e-8, abs=1e-12)
    assert to_reference.item() == -gradient.item()


# --- verl's faults: its number and ours ---


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_like_verl(name: str) -> None:
    """Where verl is not wrong: δ is finite, and for k3 away from its clamp at 10 and from cancellation in float32."""
    entry, base = GOLDEN[f"{name}|float64"], name.removesuffix("+")
    log_probs, ref = (tensor(entry[key], torch.float64).requires_grad_() for key in ("logprob", "ref"))
    value = kl_penalty(log_probs, ref, name)
    value.sum().backward()
    assert log_probs.grad is not None
    assert ref.grad is not None
    delta = (log_probs - ref).detach()
    where = delta.isfinite()
    if base in ("k3", "low_var_kl"):
        where &= (delta > -2.61) & (delta < 10) & (delta.abs() > 0.01)
    assert where.sum() >= 12
    for got, key in ((value, "value"), (log_probs.grad, "grad_logprob"), (ref.grad, "grad_ref")):
        want = tensor(entry[key], torch.float64)
        torch.testing.assert_close(got.detach()[where], want[where], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("delta", "value", "slope"),
    [(-3.0, 16.0855, -19.0855), (-10.0, 22015.5, -22025.5), (12.0, 11.0, 1.0), (30.0, 19.0, 1.0)],
)
def test_k3_has_a_gradient_beyond_verls_clamp(delta: float, value: float, slope: float) -> None:
    """verl clamps the value to 10, and with it the gradient to 0, also where the drift is worst. The slope is 1 − e^−δ,
    and only the input of the exponential is clamped, at ±20."""
    entry, index = GOLDEN["k3|float32"], VERL["kl_penalty"]["delta"].index(delta)
    assert (entry["value"][index], entry["grad_logprob"][index]) == (10, 0)
    got, gradient, _ = penalty(torch.tensor(delta), "k3")
    assert (got.item(), gradient.item()) == pytest.approx((value, slope), rel=1e-4)


def test_extremes_small_numbers_and_low_precision() -> None:
    """If one policy calls the token impossible, k3 has the clamped value; NaN stays NaN; bf16 is raised to float32."""
    got, gradient, _ = penalty(torch.tensor([math.inf, -math.inf], dtype=torch.float64), "k3")
    assert got.tolist() == pytest.approx([math.exp(-20) + 19, math.exp(20) - 21])
    assert gradient.isfinite().all()
    for delta in (1e-3, -1e-3):  # the exact value is 5.0e-7; verl's float32 gives 4.77e-7
        assert penalty(torch.tensor(delta), "k3")[0].item() == pytest.approx(oracle.k3(-delta), rel=1e-6)
    for name in KL_ESTIMATORS:
        assert penalty(torch.tensor(math.nan), name)[0].isnan()
        assert kl_penalty(torch.zeros(1).bfloat16(), torch.zeros(1).bfloat16(), name).dtype == torch.float32
    for wrong in ("full", "k3++", ""):
        with pytest.raises(UsageError, match="unknown KL estimator"):
            kl_penalty(torch.zeros(1), torch.zeros(1), wrong)
