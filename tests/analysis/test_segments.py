"""Tokens by age and by turn: their numbers by hand, and the bars. Corrections per turn, against the same corrections of
answers that have one turn each."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcorr import TokenBatch, correct, preset
from rlcorr.analysis.segments import (
    FEW,
    Segment,
    age_share,
    by_lag,
    by_turn,
    correct_per_turn,
    token_lags,
    turns_as_rows,
)  # fmt: skip
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


# --- corrections per turn ---


def conversation() -> TokenBatch:
    """Three answers of up to 12 tokens, with tools in between in the first two, and two versions in the second."""
    chance = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0], [1] * 5 + [0] * 7])
    turn = torch.tensor([[0] * 5 + [1] * 3 + [2] * 4, [3] * 3 + [7] * 9, [0] * 12])
    rollout = -2 * torch.rand(mask.shape, generator=chance).double() - 0.1
    noise = torch.randn(mask.shape, generator=chance).double()
    return TokenBatch(
        mask.bool(), rollout, (rollout + 0.3 * noise).clamp(max=-1e-3), advantages=noise.sin(),
        rewards=torch.tensor([1.0, 0.0, 0.5]), turn_ids=turn, policy_versions=torch.tensor([4, 5, 6]),
    )  # fmt: skip


TURNS = [(0, slice(0, 3)), (0, slice(5, 7)), (0, slice(8, 12)), (1, slice(0, 2)), (1, slice(3, 6)), (2, slice(0, 5))]


def test_every_turn_becomes_a_row() -> None:
    batch, rows = conversation(), turns_as_rows(conversation())
    assert rows.response_mask.sum(-1).tolist() == [3, 2, 4, 2, 3, 5]
    for name in ("rollout_log_probs", "old_log_probs", "advantages"):
        for row, (answer, columns) in zip(rows.tensors()[name], TURNS, strict=True):
            expected = batch.tensors()[name][answer, columns]
            assert torch.equal(row[: len(expected)], expected), name
    assert rows.tensors()["rewards"].tolist() == [1, 1, 1, 0, 0, 0.5]
    assert rows.tensors()["policy_versions"].tolist() == [4, 4, 4, 5, 5, 6]


@pytest.mark.parametrize(
    "name", ["decoupled_seq_is", "decoupled_geo_rs_token_tis", "skyrl_product_mask", "decoupled_k3_rs"]
)
def test_each_turn_is_corrected_as_an_answer_of_its_own(name: str) -> None:
    batch, config = conversation(), preset(name)
    result = correct_per_turn(batch, config)
    for answer, columns in TURNS:
        alone = {
            field: tensor[answer : answer + 1, columns]
            for field, tensor in batch.tensors().items()
            if tensor.shape == batch.response_mask.shape and field != "turn_ids"
        }
        expected = correct(TokenBatch(**alone), config)
        torch.testing.assert_close(result.weights[answer, columns], expected.weights[0])
        assert torch.equal(result.keep_mask[answer, columns], expected.keep_mask[0])
        assert torch.equal(result.rejected_by[answer, columns], expected.rejected_by[0])
    assert not result.weights[~batch.response_mask].any()
    assert not result.keep_mask[~batch.response_mask].any()


def test_a_batch_without_turns_is_refused() -> None:
    with pytest.raises(UsageError, match="needs turn_ids"):
        turns_as_rows(replace(conversation(), turn_ids=None))
