"""Masked sums, means, extremes and moments: nothing on padding counts, NaN and inf included."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcorr.masked import masked_max, masked_mean, masked_sum, moments

X = torch.tensor([[1.0, 2.0, math.nan], [math.inf, -3.0, -math.inf], [math.nan, math.nan, math.nan]])
MASK = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)


def test_padding_never_leaks() -> None:
    assert masked_sum(X, MASK).item() == 0.0  # 1 + 2 − 3
    assert masked_sum(X, MASK, -1).tolist() == [3.0, -3.0, 0.0]
    assert masked_mean(X, MASK, -1).tolist() == [1.5, -3.0, 0.0]
    assert masked_max(X, MASK, -1).tolist() == [2.0, -3.0, 0.0]


def test_a_nan_on_the_mask_stays_visible() -> None:
    row = torch.tensor([[1.0, math.nan]])
    both = torch.ones(1, 2, dtype=torch.bool)
    assert masked_sum(row, both).isnan()
    assert masked_mean(row, both, -1).isnan().all()
    assert masked_max(row, both, -1).isnan().all()


def test_mean_with_a_given_count() -> None:
    """The fixed denominator: 3 summed over 6 tokens, 2 of them kept."""
    assert masked_mean(X, MASK, -1, count=6)[0].item() == 0.5
    assert masked_mean(X, MASK, count=torch.tensor(4)).item() == 0.0


def test_gradient_is_zero_on_padding() -> None:
    x = X.clone().requires_grad_()
    masked_mean(x, MASK).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, MASK.float() / 3)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_nothing_selected(shape: tuple[int, int]) -> None:
    x, mask = torch.full(shape, math.nan), torch.zeros(shape, dtype=torch.bool)
    assert masked_sum(x, mask).item() == 0
    assert masked_mean(x, mask).item() == 0
    for reduced in (masked_sum(x, mask, -1), masked_mean(x, mask, -1), masked_max(x, mask, -1)):
        assert reduced.tolist() == [0.0] * shape[0]


def test_moments_of_nothing_are_neutral() -> None:
    empty = moments(X, torch.zeros_like(MASK))
    assert [float(x) for x in (empty.count, empty.total, empty.squares)] == [0, 0, 0]
    assert [float(empty.low), float(empty.high)] == [math.inf, -math.inf]
    one = moments(X, MASK)
    merged = one.merge(empty)
    assert [float(x) for x in (merged.count, merged.low, merged.high)] == [3.0, -3.0, 2.0]


def test_moments_are_float64_on_any_input() -> None:
    """2^24 + 1 does not exist in float32, and bools have no sum of squares of their own."""
    big = torch.tensor([2.0**24, 1.0])
    assert float(moments(big, torch.ones(2, dtype=torch.bool)).total) == 2**24 + 1
    assert float(moments(MASK, torch.ones_like(MASK)).squares) == 3


def _selected(x: Tensor, mask: Tensor) -> list[float]:
    return [v for v, m in zip(x.flatten().tolist(), mask.flatten().tolist(), strict=True) if m]


@oracle.examples(60)
@given(oracle.pairs(wild=False))
def test_against_plain_loops(pairs: oracle.Pairs) -> None:
    shape = (len(pairs.mask), pairs.columns)
    x = torch.tensor(pairs.old, dtype=torch.float64).reshape(shape)
    mask = torch.tensor(pairs.mask).reshape(shape).bool()
    rows = [oracle.real(row, m) for row, m in zip(pairs.old, pairs.mask, strict=True)]
    assert masked_sum(x, mask, -1).tolist() == pytest.approx([sum(row) for row in rows])
    assert masked_mean(x, mask, -1).tolist() == pytest.approx([oracle.mean(row) for row in rows])
    assert masked_max(x, mask, -1).tolist() == [oracle.largest(row) for row in rows]
    flat, got = _selected(x, mask), moments(x, mask)
    assert float(got.count) == len(flat)
    assert float(got.total) == pytest.approx(sum(flat))
    assert float(got.squares) == pytest.approx(sum(v * v for v in flat))
    assert (float(got.low), float(got.high)) == (min(flat, default=math.inf), max(flat, default=-math.inf))
