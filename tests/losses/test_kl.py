"""KL penalties: values and gradients against verl's recorded ones and the scalar oracle; where verl differs, both."""

import itertools
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
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def penalty(delta: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Value and both gradients at log π_θ = δ, log π_ref = 0."""
    ours, reference = delta.clone().requires_grad_(), torch.zeros_like(delta).requires_grad_()
    value = kl_penalty(ours, reference, name)
    value.sum().backward()
    assert ours.grad is not None
    assert reference.grad is not None
    return value.detach(), ours.grad, reference.grad


def comparable(delta: Tensor, base: str) -> Tensor:
    """Where verl is not wrong: finite δ, and for k3 away from its clamp at 10 and from fp32 cancellation."""
    usable = delta.isfinite()
    return usable & (delta > -2.61) & (delta < 10) & (delta.abs() > 0.01) if base in ("k3", "low_var_kl") else usable


def test_like_verl() -> None:
    for name, dtype in itertools.product(KL_ESTIMATORS, ("float32", "float64")):
        assert_like_verl(name, dtype)


def assert_like_verl(name: str, dtype: str) -> None:
    entry = GOLDEN[f"{name}|{dtype}"]
    log_probs, ref = (tensor(entry[key], DTYPES[dtype]) for key in ("logprob", "ref"))
    log_probs.requires_grad_()
    ref.requires_grad_()
    value = kl_penalty(log_probs, ref, name)
    value.sum().backward()
    assert log_probs.grad is not None
    assert ref.grad is not None
    where = comparable((log_probs - ref).detach(), name.removesuffix("+"))
    assert where.sum() >= 12, (name, dtype)
    for got, key in ((value, "value"), (log_probs.grad, "grad_logprob"), (ref.grad, "grad_ref")):
        want = tensor(entry[key], DTYPES[dtype])[where]
        case = f"{name}, {dtype}, {key}"
        torch.testing.assert_close(
            got.detach()[where], want, rtol=2e-5, atol=1e-6, msg=lambda text, case=case: f"{case}: {text}"
        )


@pytest.mark.parametrize("name", [name for name in KL_ESTIMATORS if "k3" not in name and "low_var" not in name])
def test_like_verl_in_bf16(name: str) -> None:
    """k3 is left out: in bf16 verl's e^x − x − 1 keeps at most one digit."""
    entry = GOLDEN[f"{name}|bfloat16"]
    log_probs, ref = (tensor(entry[key], torch.bfloat16) for key in ("logprob", "ref"))
    value = kl_penalty(log_probs, ref, name)
    assert value.dtype == torch.float32  # raised: in bf16 k3 would keep one digit
    where = comparable((log_probs - ref).float(), name)
    torch.testing.assert_close(value[where].float(), tensor(entry["value"])[where], rtol=1e-2, atol=1e-6)


@oracle.examples(150)
@given(st.floats(-30, 30) | st.sampled_from([0.0, 20.0, -20.0, 1e-3, -1e-3]), st.sampled_from(KL_ESTIMATORS))
def test_value_and_gradient(delta: float, name: str) -> None:
    value, gradient, to_reference = penalty(torch.tensor(delta, dtype=torch.float64), name)
    base = name.removesuffix("+")
    assert value.item() == pytest.approx(oracle.kl_penalty(delta, base), rel=1e-8, abs=1e-12)
    assert gradient.item() == pytest.approx(oracle.kl_gradient(delta, name), rel=1e-8, abs=1e-12)
    assert to_reference.item() == -gradient.item()


@pytest.mark.parametrize("name", [name for name in KL_ESTIMATORS if not name.endswith("+")])
def test_gradient_is_the_slope_of_the_value(name: str) -> None:
    """Central differences in float64. The "+" forms are left out: their gradient is k2's on purpose."""
    step = 1e-5
    for delta in (-3.0, -0.7, -5e-3, 5e-3, 0.4, 6.0, 15.0):
        moved = torch.tensor([delta + step, delta - step], dtype=torch.float64)
        up, down = kl_penalty(moved, torch.zeros_like(moved), name).tolist()
        slope = (up - down) / (2 * step)
        gradient = penalty(torch.tensor(delta, dtype=torch.float64), name)[1].item()
        assert gradient == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("alias", "name"), [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3")])
@pytest.mark.parametrize("plus", ["", "+"])
def test_aliases(alias: str, name: str, plus: str) -> None:
    delta = torch.linspace(-3, 3, 7)
    for got, want in zip(penalty(delta, alias + plus), penalty(delta, name + plus), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["full", "full+", "k4", "k3++", "", "K3"])
def test_unknown_estimator(name: str) -> None:
    with pytest.raises(UsageError, match="unknown KL estimator"):
        kl_penalty(torch.zeros(1), torch.zeros(1), name)


# --- verl's faults: its number and ours ---


def at(delta: float, key: str, name: str = "k3") -> float | str:
    return GOLDEN[f"{name}|float32"][key][VERL["kl_penalty"]["delta"].index(delta)]


@pytest.mark.parametrize(("delta", "value"), [(-3.0, 16.0855), (-5.0, 142.413), (-10.0, 22015.5)])
def test_k3_pulls_back_hardest_where_the_drift_is_worst(delta: float, value: float) -> None:
    """verl clamps the value to 10, and with it the gradient to 0, for δ < −2.61. The slope there is 1 − e^−δ."""
    assert at(delta, "value") == 10
    assert at(delta, "grad_logprob") == 0
    got, gradient, _ = penalty(torch.tensor(delta), "k3")
    assert got.item() == pytest.approx(value, rel=1e-5)
    assert gradient.item() == pytest.approx(1 - math.exp(-delta), rel=1e-5)


@pytest.mark.parametrize("delta", [11.0, 12.0, 20.0, 20.5, 30.0])
def test_k3_has_a_gradient_on_the_other_side_too(delta: float) -> None:
    """verl: 10 and 0. k3 = e^−δ − 1 + δ is about δ − 1, flat beyond the input clamp at 20; the gradient about 1."""
    assert (at(delta, "value"), at(delta, "grad_logprob")) == (10, 0)
    got, gradient, _ = penalty(torch.tensor(delta), "k3")
    assert got.item() == pytest.approx(min(delta, 20.0) - 1, rel=1e-5)
    assert gradient.item() == pytest.approx(1.0, rel=1e-4)


def test_k3_near_zero() -> None:
    """At |δ| = 1e-3 the exact value is 5.0e-7; verl's float32 gives 4.77e-7, a multiple of the spacing at 1."""
    for delta in (1e-3, -1e-3):
        assert at(delta, "value") == 4.7683716e-07
        assert penalty(torch.tensor(delta), "k3")[0].item() == pytest.approx(oracle.k3(-delta), rel=1e-6)


def test_k3_of_an_impossible_token_is_finite() -> None:
    """δ = ±inf, one policy calls the token impossible: the clamped value, no NaN. verl says 10 for both."""
    got, gradient, _ = penalty(torch.tensor([math.inf, -math.inf], dtype=torch.float64), "k3")
    assert got.tolist() == pytest.approx([math.exp(-20) + 19, math.exp(20) - 21])
    assert gradient.isfinite().all()


def test_nan_stays_visible() -> None:
    """verl: value NaN with gradient 0."""
    for name in KL_ESTIMATORS:
        assert penalty(torch.tensor(math.nan), name)[0].isnan()
