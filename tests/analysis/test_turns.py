"""Corrections per turn, against the same corrections of answers that have one turn each."""

from dataclasses import replace

import pytest
import torch

from rlcorr import TokenBatch, correct, preset
from rlcorr.analysis.segments import correct_per_turn, turns_as_rows
from rlcorr.errors import UsageError


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
