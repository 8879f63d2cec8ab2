"""Masked sums, means, extremes and moments: nothing on padding counts, NaN and inf included."""

import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcorr.masked import masked_max, masked_mean, masked_min, masked_sum
from rlcorr.measuring.moments import Moments, MomentTable, moments, row_moments

X = torch.tensor([[1.0, 2.0, math.nan], [math.inf, -3.0, -math.inf], [math.nan, math.nan, math.nan]])
MASK = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)


def test_padding_never_leaks() -> None:
    assert masked_sum(X, MASK).item() == 0.0  # 1 + 2 − 3
    assert masked_sum(X, MASK, -1).tolist() == [3.0, -3.0, 0.0]
    assert masked_mean(X, MASK, -1).tolist() == [1.5, -3.0, 0.0]
    assert masked_max(X, MASK, -1).tolist() == [2.0, -3.0, 0.0]
    assert masked_min(X, MASK, -1).tolist() == [1.0, -3.0, 0.0]


def test_along_the_other_axis() -> None:
    """Columns hold 1 | 2, −3 | nothing."""
    assert masked_sum(X, MASK, 0).tolist() == [1.0, -1.0, 0.0]
    assert masked_mean(X, MASK, 0).tolist() == [1.0, -0.5, 0.0]
    assert masked_max(X, MASK, 0).tolist() == [1.0, 2.0, 0.0]
    assert masked_min(X, MASK, 0).tolist() == [1.0, -3.0, 0.0]


def test_a_nan_on_the_mask_stays_visible() -> None:
    row = torch.tensor([[1.0, math.nan]])
    both = torch.ones(1, 2, dtype=torch.bool)
    assert masked_sum(row, both).isnan()
    assert masked_mean(row, both, -1).isnan().all()
    assert masked_max(row, both, -1).isnan().all()
    assert masked_min(row, both, -1).isnan().all()


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
    for reduce in (masked_sum, masked_mean, masked_max, masked_min):
        assert reduce(x, mask, -1).tolist() == [0.0] * shape[0]


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
    assert masked_min(x, mask, -1).tolist() == [oracle.smallest(row) for row in rows]


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
def test_moments_of_every_row_and_of_one(pairs: oracle.Pairs) -> None:
    shape = (len(pairs.mask), pairs.columns)
    x = torch.tensor(pairs.old, dtype=torch.float64).reshape(shape)
    mask = torch.tensor(pairs.mask).reshape(shape).bool()
    expected = [moments_of(oracle.real(row, m)) for row, m in zip(pairs.old, pairs.mask, strict=True)]
    rows = listed(moments(x, mask))
    assert len(rows) == len(expected)
    for b, numbers in enumerate(expected):
        assert rows[b] == pytest.approx(numbers)
        assert listed(moments(x[b], mask[b])) == pytest.approx(numbers)


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("extremes", [False, True])
def test_only_the_asked_parts_are_filled_in(squares: bool, extremes: bool) -> None:
    """{1, 2} and {−3}: sums 3 and −3, squares 5 and 9, from 1 to 2 and from −3 to −3."""
    second = [5.0, 9.0] if squares else [0.0, 0.0]
    low, high = ([1.0, -3.0], [2.0, -3.0]) if extremes else ([math.inf] * 2, [-math.inf] * 2)
    rows = moments(X[:2], MASK[:2], squares=squares, extremes=extremes)
    assert [x.tolist() for x in rows] == [[2.0, 1.0], [3.0, -3.0], second, low, high]


def test_an_empty_selection_changes_nothing_in_a_merge() -> None:
    some = MomentTable.of({"x": moments(X[0], MASK[0])})
    for nothing in (moments(X[0], MASK[2]), moments(X[0] > 1, MASK[2]), moments(X[0, :0], MASK[0, :0])):
        merged = some.merge(MomentTable.of({"x": nothing}))
        assert merged.table.tolist() == [[2.0, 3.0, 5.0, 1.0, 2.0]]


@oracle.examples(40)
@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=4), min_size=1, max_size=3))
def test_shares(rows: list[list[tuple[bool, bool]]]) -> None:
    """Each token has a flag and a mask; the sum of squares of a flag is its sum."""
    both = torch.tensor(rows)
    hits = [float(sum(flag and real for flag, real in row)) for row in rows]
    assert listed(moments(both[..., 0], both[..., 1])) == [
        [float(sum(real for _, real in row)), hit, hit, math.inf, -math.inf]
        for row, hit in zip(rows, hits, strict=True)
    ]


@oracle.examples(60)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), max_size=5))
def test_row_moments_count_each_row_once_per_token(rows: list[tuple[float, int]]) -> None:
    """What a row without tokens holds is not looked at."""
    x = torch.tensor([value if count else math.nan for value, count in rows], dtype=torch.float64)
    pooled = row_moments(x, torch.tensor([count for _, count in rows], dtype=torch.float64)).pooled()
    assert listed(pooled) == pytest.approx(moments_of([value for value, count in rows for _ in range(count)]))
