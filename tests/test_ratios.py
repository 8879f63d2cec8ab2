"""Log-ratios, k1 k2 k3 and their sums over a sequence, against the scalar oracle and by hand."""

import math
from fractions import Fraction

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcorr.ratios import excess, k1, k2, k3, log_ratio, ratio

NUMBERS = st.floats(-25, 25) | st.floats(-0.05, 0.05) | st.sampled_from([0.0, 20.0, -20.0, math.inf, -math.inf])


@oracle.examples(100)
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


def test_small_numbers_keep_their_digits() -> None:
    """k3 and r − 1 against their power series up to d¹¹ in exact fractions. In float32 e^d − 1 − d from 1/4 on loses
    about 1.28 · 6e-8 of 0.034, 2e-6; at d = 1e-3 it would lose 5 %, and r − 1 at 1e-4 would be 1.7e-4 too large."""
    for d in (1e-6, -1e-6, 1e-4, -1e-3, 0.01, 0.1, -0.1, 0.249, -0.249, 0.251, -0.251):
        for dtype, error in ((torch.float64, 1e-15), (torch.float32, 3e-7)):
            x = torch.tensor(d, dtype=dtype)
            terms = [Fraction(x.item()) ** j / math.factorial(j) for j in range(1, 12)]
            beyond = 20 if abs(d) > 0.25 else 1
            assert k3(x).item() == pytest.approx(float(sum(terms[1:])), rel=beyond * error, abs=0), (d, dtype)
            assert excess(x).item() == pytest.approx(float(sum(terms)), rel=error, abs=0), (d, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_log_ratio_is_at_least_float32(dtype: torch.dtype) -> None:
    """Subtracting in bf16 would round 5.03125 − 0.0390625 = 4.9921875 to 5."""
    old, rollout = torch.tensor([[-0.0390625]], dtype=dtype), torch.tensor([[-5.03125]], dtype=dtype)
    d = log_ratio(old, rollout, torch.tensor([[True]]))
    assert d.dtype == torch.float32
    assert d.item() == 4.9921875


def test_nan_stays_nan() -> None:
    assert all(f(torch.tensor(math.nan)).isnan() for f in (ratio, k1, k2, k3, excess))


def test_log_ratio_is_zero_on_padding() -> None:
    old = torch.tensor([[math.nan, -1.0, -math.inf]])
    d = log_ratio(old, torch.full((1, 3), -2.0), torch.tensor([[False, True, False]]))
    assert d.tolist() == [[0.0, 1.0, 0.0]]
