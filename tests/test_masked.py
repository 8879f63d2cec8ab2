"""Masked sums, means, extremes and moments: nothing on padding counts, NaN and inf included."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcorr.errors import UsageError
from rlcorr.masked import masked_max, masked_mean, masked_min, masked_sum
from rlcorr.measuring.moments import Moments, MomentTable, merge, moments, row_moments

X = torch.tensor([[1.0, 2.0, math.nan], [math.inf, -3.0, -math.inf], [math.nan, math.nan, math.nan]])
MASK = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)


def test_padding_never_leaks_along_either_axis() -> None:
    """Rows hold 1, 2 | −3 | nothing, and columns 1 | 2, −3 | nothing."""
    assert masked_sum(X, MASK).item() == 0.0
    rows = {masked_sum: [3.0, -3.0, 0.0], masked_mean: [1.5, -3.0, 0.0]}
    rows |= {masked_max: [2.0, -3.0, 0.0], masked_min: [1.0, -3.0, 0.0]}
    columns = {masked_sum: [1.0, -1.0, 0.0], masked_mean: [1.0, -0.5, 0.0]}
    columns |= {masked_max: [1.0, 2.0, 0.0], masked_min: [1.0, -3.0, 0.0]}
    for dim, expected in ((-1, rows), (0, columns)):
        for reduce, values in expected.items():
            assert reduce(X, MASK, dim).tolist() == values, reduce.__name__


def test_a_nan_on_the_mask_stays_visible() -> None:
    row, both = torch.tensor([[1.0, math.nan]]), torch.ones(1, 2, dtype=torch.bool)
    for reduce in (masked_sum, masked_mean, masked_max, masked_min):
        assert reduce(row, both, -1).isnan().all(), reduce.__name__


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
    assert masked_sum(x, mask).item() == masked_mean(x, mask).item() == 0
    for reduce in (masked_sum, masked_mean, masked_max, masked_min):
        assert reduce(x, mask, -1).tolist() == [0.0] * shape[0]


# --- moments ---


def moments_of(values: list[float]) -> list[float]:
    """count, Σx, Σx², min, max; +inf and −inf where there is nothing."""
    extremes = [min(values, default=math.inf), max(values, default=-math.inf)]
    return [len(values), sum(values), sum(v * v for v in values), *extremes]


def listed(rows: Moments) -> list[list[float]]:
    """The five numbers of every row."""
    return torch.stack(rows, -1).tolist()


@oracle.examples(60)
@given(oracle.pairs(wild=False))
def test_moments_of_every_row_of_one_and_of_all(pairs: oracle.Pairs) -> None:
    shape = (len(pairs.mask), pairs.columns)
    x = torch.tensor(pairs.old, dtype=torch.float64).reshape(shape)
    mask = torch.tensor(pairs.mask).reshape(shape).bool()
    real = [oracle.real(row, m) for row, m in zip(pairs.old, pairs.mask, strict=True)]
    rows = moments(x, mask)
    assert len(listed(rows)) == len(real)
    for b, values in enumerate(real):
        assert listed(rows)[b] == pytest.approx(moments_of(values))
        assert listed(moments(x[b], mask[b])) == pytest.approx(moments_of(values))
    assert listed(rows.pooled()) == pytest.approx(moments_of([value for row in real for value in row]))


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("extremes", [False, True])
def test_only_the_asked_parts_are_filled_in(squares: bool, extremes: bool) -> None:
    """{1, 2} and {−3}: sums 3 and −3, squares 5 and 9, from 1 to 2 and from −3 to −3."""
    second = [5.0, 9.0] if squares else [0.0, 0.0]
    low, high = ([1.0, -3.0], [2.0, -3.0]) if extremes else ([math.inf] * 2, [-math.inf] * 2)
    rows = moments(X[:2], MASK[:2], squares=squares, extremes=extremes)
    assert [x.tolist() for x in rows] == [[2.0, 1.0], [3.0, -3.0], second, low, high]


def test_moments_of_batches_merge() -> None:
    """{1, 2} and {−4}: count 3, sum −1, squares 21, from −4 to 2. An empty selection changes nothing."""
    some = MomentTable.of({"x": moments(X[0], MASK[0])})
    other = MomentTable.of({"x": moments(torch.tensor([-4.0]), torch.tensor([True]))})
    assert merge([some, other]).table.tolist() == [[3, -1, 21, -4, 2]]
    for nothing in (moments(X[0], MASK[2]), moments(X[0] > 1, MASK[2]), moments(X[0, :0], MASK[0, :0])):
        assert merge([some, MomentTable.of({"x": nothing})]).table.tolist() == [[2, 3, 5, 1, 2]]
    both = MomentTable.of(dict.fromkeys("xy", moments(X[0], MASK[0])))
    with pytest.raises(UsageError, match="different quantities cannot be merged: x with x, y"):
        merge([some, both])


def test_shares() -> None:
    """Two of three tokens have the flag: a flag's sum of squares is its sum, and it has no extremes."""
    flags, mask = torch.tensor([[True, True, False, True]]), torch.tensor([[True, True, True, False]])
    assert listed(moments(flags, mask)) == [[3.0, 2.0, 2.0, math.inf, -math.inf]]


@oracle.examples(60)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), max_size=5))
def test_row_moments_count_each_row_once_per_token(rows: list[tuple[float, int]]) -> None:
    """What a row without tokens holds is not looked at."""
    x = torch.tensor([value if count else math.nan for value, count in rows], dtype=torch.float64)
    pooled = row_moments(x, torch.tensor([count for _, count in rows], dtype=torch.float64)).pooled()
    assert [c.item() for c in pooled] == pytest.approx(moments_of([v for v, count in rows for _ in range(count)]))
