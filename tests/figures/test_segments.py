"""Tokens by age and by turn: their numbers by hand, and the bars."""

import math
from typing import Any

import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.analysis.segments import FEW, Segment, age_share, by_lag, by_turn, token_lags
from rlcorr.errors import UsageError
from rlcorr.figures.mismatch import lag_bars, turn_bars

D = torch.tensor([[0.1, -0.1, 0.3, 0.0], [0.5, 0.2, -0.4, 9.0]]).double()
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
ROLLOUT = torch.full((2, 4), -2.0).double()
BATCH = TokenBatch(MASK, ROLLOUT, ROLLOUT + D)


def test_lags_count_from_the_version_that_scored() -> None:
    """Step 10 is scored by version 9; step 5 by version 8, because the batch holds tokens of it."""
    rows = BATCH.replace(policy_versions=torch.tensor([8, 4]))
    assert token_lags(rows, 10).tolist() == [[1] * 4, [5] * 4]
    assert token_lags(rows, 5).tolist() == [[0] * 4, [4] * 4]
    tokens = BATCH.replace(policy_versions=torch.tensor([[7, 7, 8, 8], [8, 8, 8, 99]]))
    assert token_lags(tokens, 10)[MASK].tolist() == [2, 2, 1, 1, 1, 1, 1]
    with pytest.raises(UsageError, match="a lag needs policy_versions"):
        token_lags(BATCH, 10)


def test_the_tokens_of_each_lag_and_turn_are_measured_worked_out_by_hand() -> None:
    batch = BATCH.replace(
        policy_versions=torch.tensor([[7, 7, 8, 8], [8, 8, 8, 0]]), turn_ids=torch.tensor([[0, 0, 2, 2], [0, 2, 2, 1]])
    )
    newer, older = by_lag(batch, 10)
    assert (newer.number, newer.tokens, older.number, older.tokens) == (1, 5, 2, 2)
    assert newer.abs_log_ratio == pytest.approx((0.3 + 0.0 + 0.5 + 0.2 + 0.4) / 5)
    assert older.log_ratio_mean == pytest.approx(0.0, abs=1e-12)
    assert older.k3 == pytest.approx((math.exp(0.1) - 1.1 + math.exp(-0.1) - 0.9) / 2)
    first, third = by_turn(batch)
    assert (first.number, first.tokens, third.number, third.tokens) == (0, 3, 2, 4)
    assert third.abs_log_ratio == pytest.approx((0.3 + 0.0 + 0.2 + 0.4) / 4)
    for figure, segments in ((lag_bars((newer, older)), (newer, older)), (turn_bars((first, third)), (first, third))):
        bars: Any = figure.data[0]
        assert list(bars.x) == [segment.number for segment in segments]
        assert list(bars.y) == pytest.approx([segment.abs_log_ratio for segment in segments])


def test_tokens_without_a_ratio_are_left_out() -> None:
    old = BATCH.tensors()["old_log_probs"].clone()
    old[0, 0] = math.nan
    (only,) = by_turn(BATCH.replace(old_log_probs=old, turn_ids=torch.zeros(2, 4, dtype=torch.int32)))
    assert only.tokens == 6


def test_few_tokens_of_the_youngest_weights_prove_nothing() -> None:
    old = Segment(3, 900, 0.01, 0.1, 0.0)
    for tokens, is_most in ((FEW - 1, False), (FEW, True)):
        part = age_share((Segment(0, tokens, 0.001, 0.03, 0.0), old))
        assert part is not None
        assert part.is_most == is_most
    part = age_share((Segment(0, 900, 0.001, 0.03, 0.0), Segment(3, 900, 0.002, 0.1, 0.0)))
    assert part is not None
    assert part.share == pytest.approx(1 / 3)
    assert not part.is_most
