"""Log-ratios, k1 k2 k3 and their sums over a sequence, against the scalar oracle and by hand."""

import math
from fractions import Fraction

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import VERL

from rlcorr.ratios import excess, k1, k2, k3, log_ratio, over_sequence, ratio

NUMBERS = st.floats(-25, 25) | st.floats(-0.05, 0.05) | st.sampled_from([0.0, 20.0, -20.0, 0.01, -0.01])


@oracle.examples(200)
@given(NUMBERS)
def test_divergences_in_float64(d: float) -> None:
    x = torch.tensor(d, dtype=torch.float64)
    c = oracle.clamp(d, -20, 20)
    assert ratio(x).item() == pytest.approx(math.exp(c), rel=1e-12)
    assert k1(x).item() == -d
    assert k2(x).item() == pytest.approx(d * d / 2, rel=1e-12)
    # exp(d) − 1 − d of the oracle loses digits just above its own switch to the series: 1e-16 of 1 against 5e-5.
    assert k3(x).item() == pytest.approx(oracle.k3(c), rel=1e-10, abs=1e-300)
    assert excess(x).item() == pytest.approx(math.expm1(c), rel=1e-12, abs=0)


def test_k3_keeps_its_digits_near_zero() -> None:
    """At d = 1e-3 k3 = 5.00166708e-7. In float32 exp(d) − 1 − d gives 4.7684e-07, 4.7 % too little: that is verl's.

    verl's δ is −d. Its two values at ±1e-3 are the same multiple of the float32 spacing at 1.
    """
    entry = VERL["kl_penalty"]["entries"]["k3|float32"]
    at = VERL["kl_penalty"]["delta"].index(-0.001)
    assert entry["value"][at] == 4.7683716e-07
    exact = 1e-3**2 / 2 + 1e-3**3 / 6 + 1e-3**4 / 24
    assert k3(torch.tensor(1e-3)).item() == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx(5.00166708e-7, rel=1e-8)


@pytest.mark.parametrize("d", [-0.249, -0.1, -1e-3, 1e-5, 0.01, 0.1, 0.249])
def test_k3_near_zero_is_the_sum_of_ten_terms(d: float) -> None:
    """dʲ/j! for j = 2 … 11, in exact fractions. At 1/4 what is left out is 2·0.25¹⁰/12! = 4e-15 of the sum."""
    terms = sum(Fraction(d) ** j / math.factorial(j) for j in range(2, 12))
    assert k3(torch.tensor(d, dtype=torch.float64)).item() == pytest.approx(float(terms), rel=1e-15, abs=0)


@pytest.mark.parametrize(
    ("d", "error"),
    [(d, 3e-7) for d in (1e-6, -1e-6, 1e-4, -1e-4, 3e-3, 0.03, 0.1, 0.249, -0.249)] + [(0.251, 5e-6), (-0.251, 5e-6)],
)
def test_k3_in_float32_is_near_the_exact_value(d: float, error: float) -> None:
    """From 1/4 on e^d − 1 − d loses about 1.28 · 6e-8 of 0.034, 2e-6."""
    x = torch.tensor(d)
    exact = sum(Fraction(x.item()) ** j / math.factorial(j) for j in range(2, 30))
    assert k3(x).item() == pytest.approx(float(exact), rel=error, abs=0)


def test_excess_keeps_its_digits_near_zero() -> None:
    """At d = 1e-4 r − 1 = 1.00005e-4; in float32 exp(d) − 1 is a multiple of 1.2e-7 and gives 1.0001659e-4."""
    assert excess(torch.tensor(1e-4)).item() == pytest.approx(1.00005e-4, rel=1e-6)


def test_k3_has_its_gradient_on_both_sides_of_the_series() -> None:
    """d/dd (e^d − 1 − d) = e^d − 1."""
    for d in (0.0, 1e-3, 0.249, 0.251, -0.249, -0.5, 3.0):
        x = torch.tensor(d, dtype=torch.float64, requires_grad=True)
        k3(x).backward()
        assert x.grad is not None
        assert x.grad.item() == pytest.approx(math.expm1(d), rel=1e-8, abs=1e-15)


def test_extremes_stop_at_the_clamp() -> None:
    ends = torch.tensor([math.inf, -math.inf, 30.0, -30.0], dtype=torch.float64)
    assert ratio(ends).tolist() == pytest.approx([math.exp(20), math.exp(-20)] * 2, rel=1e-12)
    assert k3(ends).tolist() == pytest.approx([math.exp(20) - 21, math.exp(-20) + 19] * 2, rel=1e-12)
    assert excess(ends).tolist() == pytest.approx([math.exp(20) - 1, math.exp(-20) - 1] * 2, rel=1e-12)
    assert ratio(torch.tensor(math.nan)).isnan()
    assert k3(torch.tensor(math.nan)).isnan()
    assert excess(torch.tensor(math.nan)).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_log_ratio_is_at_least_float32(dtype: torch.dtype) -> None:
    """Subtracting in bf16 would round 5.03125 − 0.0390625 = 4.9921875 to 5."""
    old, rollout = torch.tensor([[-0.0390625]], dtype=dtype), torch.tensor([[-5.03125]], dtype=dtype)
    d = log_ratio(old, rollout, torch.tensor([[True]]))
    assert d.dtype == torch.float32
    assert d.item() == 4.9921875


def test_log_ratio_is_zero_on_padding() -> None:
    old = torch.tensor([[math.nan, -1.0, -math.inf]])
    d = log_ratio(old, torch.full((1, 3), -2.0), torch.tensor([[False, True, False]]))
    assert d.tolist() == [[0.0, 1.0, 0.0]]


@oracle.examples(60)
@given(oracle.pairs(), st.sampled_from(["sum", "mean", "max", "min"]))
def test_over_sequence(pairs: oracle.Pairs, how: str) -> None:
    shape = (len(pairs.mask), pairs.columns)
    x = torch.tensor(pairs.old, dtype=torch.float64).reshape(shape)
    mask = torch.tensor(pairs.mask).reshape(shape).bool()
    got = over_sequence(x, mask, how)  # pyright: ignore[reportArgumentType]
    rows = [oracle.real(row, m) for row, m in zip(pairs.old, pairs.mask, strict=True)]
    assert got.tolist() == pytest.approx([oracle.reduce(row, how) for row in rows], nan_ok=True)
