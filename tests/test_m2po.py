"""M2PO's bound against a loop that drops the largest square until the rest is small enough."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from rlcorr.bounds import m2_at, m2po
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.types import TokenBatch


def kept_by_dropping(squares: list[float], threshold: float) -> list[float]:
    """As AReaL does (areal/trainer/ppo/actor.py:935-1010): the largest goes until the mean of the rest is below."""
    left = sorted(squares)
    while len(left) > 1 and not sum(left) / len(left) < threshold:
        left.pop()
    return left


# No two squares are equal but those of one value: among equals AReaL keeps some and a bound all.
DIFFERENCES = st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True)


@examples(60)
@given(DIFFERENCES, st.sampled_from([0.01, 0.04, 0.5]))
def test_the_bound_keeps_what_dropping_the_largest_keeps(steps: list[int], threshold: float) -> None:
    d = [step / 64 * (-1) ** i for i, step in enumerate(steps)]
    rollout = torch.full((1, len(d)), -2.0)
    batch = TokenBatch.from_log_probs(rollout + torch.tensor([d]), rollout, torch.ones(1, len(d)))
    rule = m2po(batch, threshold)
    result = correct(batch, CorrectionConfig(rollout_rs=(rule,)))
    expected = kept_by_dropping([x * x for x in d], threshold)
    assert sorted(x * x for x, keep in zip(d, result.keep_mask[0].tolist(), strict=True) if keep) == expected


@examples(60)
@given(DIFFERENCES, st.floats(1e-4, 0.6))
def test_a_bound_is_a_threshold(steps: list[int], upper: float) -> None:
    """Just above the mean of what a bound keeps, M2PO keeps that: the next larger square would raise the mean. The sums
    are of 64ths, exact in float64."""
    d = torch.tensor([steps]) / 64
    batch = TokenBatch.from_log_probs(d - 2, torch.full(d.shape, -2.0), torch.ones(d.shape))
    kept = [s * s / 4096 for s in steps if s * s / 8192 <= upper]
    (m2,) = m2_at(batch, [upper])
    assert m2 == pytest.approx(sum(kept) / max(len(kept), 1), rel=1e-12)
    if kept:
        threshold = m2 * (1 + 1e-9)
        assert m2po(batch, threshold).upper == pytest.approx(max(kept) / 2, rel=1e-12)


def test_a_response_that_counts_thrice_is_there_thrice() -> None:
    d = torch.tensor([[0.1, -0.2], [0.3, 0.4]])
    batch = TokenBatch.from_log_probs(d - 2, torch.full(d.shape, -2.0), torch.ones(d.shape))
    three = TokenBatch.from_log_probs(d[[0, 1, 1, 1]] - 2, torch.full((4, 2), -2.0), torch.ones(4, 2))
    counts = torch.tensor([1.0, 3.0])
    for threshold in (0.02, 0.045, 0.07, 1.0):  # none between equal squares
        assert m2po(batch, threshold, counts).upper == m2po(three, threshold).upper
    assert m2_at(batch, [0.01, 0.05, 1.0], counts) == pytest.approx(m2_at(three, [0.01, 0.05, 1.0]), rel=1e-12)


def test_what_it_cannot_do_is_said() -> None:
    one = TokenBatch.from_log_probs(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    with pytest.raises(UsageError, match="must be > 0; got 0"):
        m2po(one, 0.0)
    with pytest.raises(UsageError, match="the batch has none"):
        m2po(TokenBatch.from_log_probs(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1)))
