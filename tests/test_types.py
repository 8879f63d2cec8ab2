"""Every wrong value is refused where it enters, by a sentence that says what was got."""

import math
from typing import Any

import pytest
import torch

from rlcorr import PRESETS, TokenBatch, evaluate, preset
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.measuring.moments import Moments, MomentTable, moments
from rlcorr.ratios import ratio

MASK = torch.tensor([[True, True, False], [True, False, False]])
LOG_PROBS = torch.zeros(2, 3)


# --- TokenBatch ---


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_mask": MASK.long()}, r"bool tensor \(B, T\); got torch.int64 of shape \(2, 3\)"),
        ({"response_mask": MASK[0]}, r"got torch.bool of shape \(3,\)"),
        ({"rollout_log_probs": None}, "rollout_log_probs is missing"),
        ({"rollout_log_probs": torch.zeros(2, 2)}, r"rollout_log_probs has shape \(2, 2\); response_mask has \(2, 3\)"),
        ({"rollout_log_probs": torch.zeros(2, 3, dtype=torch.int64)}, "floating-point numbers; got torch.int64"),
        ({"old_log_probs": torch.zeros(3, 2)}, r"old_log_probs has shape \(3, 2\)"),
        ({"log_probs": torch.zeros(2, 3, dtype=torch.bool)}, "log_probs must be floating-point"),
        ({"ref_log_probs": torch.zeros(6)}, r"ref_log_probs has shape \(6,\)"),
        ({"values": torch.zeros(2, 4)}, r"values has shape \(2, 4\)"),
        ({"advantages": torch.zeros(2)}, r"advantages has shape \(2,\)"),
        ({"returns": torch.tensor(0.0)}, r"returns has shape \(\)"),
        ({"response_ids": torch.zeros(2, 4, dtype=torch.int64)}, r"response_ids has shape \(2, 4\)"),
        ({"rewards": torch.zeros(3)}, r"rewards has shape \(3,\); it must be \(2,\)"),
        ({"rewards": torch.tensor(1.0)}, r"rewards has shape \(\); it must be \(2,\)"),
        ({"rewards": torch.zeros(2, 3)}, r"rewards has shape \(2, 3\); it must be \(2,\)"),
        ({"group_ids": torch.zeros(1)}, r"group_ids has shape \(1,\)"),
        ({"policy_versions": torch.zeros(2, 1)}, r"policy_versions has shape \(2, 1\); it must be \(2,\) or \(2, 3\)"),
        ({"prompt_ids": torch.zeros(3, 5)}, r"prompt_ids has shape \(3, 5\); it must be \(2, P\)"),
        ({"prompt_ids": torch.zeros(2)}, r"prompt_ids has shape \(2,\); it must be \(2, P\)"),
        ({"prompt_mask": torch.zeros(3, 5)}, r"prompt_mask has shape \(3, 5\)"),
    ],
)
def test_batch_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenBatch(**{"response_mask": MASK, "rollout_log_probs": LOG_PROBS, **fields})


@pytest.mark.parametrize("name", ["policy_versions", "turn_ids"])
def test_versions_and_turns_do_not_fall_within_a_response(name: str) -> None:
    """Padding does not count, and each response begins anew."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 1]]).bool()
    batch = TokenBatch(mask, torch.full((2, 4), -1.0), old_log_probs=torch.full((2, 4), -1.0))
    batch.replace(**{name: torch.tensor([[3, 3, 4, 0], [1, 1, 9, 2]])}).check_values()
    with pytest.raises(UsageError, match=rf"{name} falls from one token to the next at row 1, token 3"):
        batch.replace(**{name: torch.tensor([[3, 3, 4, 0], [1, 2, 9, 1]])}).check_values()


def test_log_probs_of_one_batch_share_a_dtype() -> None:
    with pytest.raises(
        UsageError, match=r"one dtype; got rollout_log_probs torch.float32, old_log_probs torch.bfloat16"
    ):
        TokenBatch(MASK, LOG_PROBS, old_log_probs=LOG_PROBS.bfloat16())


def test_probabilities_are_not_log_probs() -> None:
    """On real tokens: what stands on padding is nobody's business."""
    probabilities = torch.tensor([[0.9, 0.5, 0.0], [0.2, 0.0, 0.0]])
    with pytest.raises(
        UsageError, match=r"old_log_probs must be natural logarithms of probabilities, ≤ 0; got up to 0.9"
    ):
        TokenBatch.from_log_probs(probabilities, LOG_PROBS, MASK)
    padding = torch.where(MASK, -1.0, 7.0)
    assert TokenBatch.from_log_probs(padding, padding, MASK).old_log_probs is padding


def test_rounding_above_zero_is_forgiven() -> None:
    """log-softmax in bf16 can round to 0.0078125/2; 0.01 is more than that."""
    slightly = torch.full((2, 3), 0.0039)
    assert TokenBatch.from_log_probs(slightly, slightly, MASK).old_log_probs is slightly


def test_values_without_a_ratio_are_refused() -> None:
    """MASK has two real tokens in row 0 and one in row 1. −inf on one side has a ratio, as in files: e^±20."""
    nan, inf = LOG_PROBS.clone(), LOG_PROBS.clone()
    nan[0, 1] = nan[1, 0] = math.nan
    inf[0, 1] = -math.inf
    message = r"NaN at row 0, token 1 \(from 0\), and at 1 more\. .* set response_mask to 0 there.* nan_is_ratio_one"
    with pytest.raises(UsageError, match="rollout_log_probs is " + message):
        TokenBatch.from_log_probs(LOG_PROBS, nan, MASK)
    with pytest.raises(UsageError, match="old_log_probs is " + message):
        TokenBatch.from_log_probs(nan, LOG_PROBS, MASK)
    with pytest.raises(UsageError, match=r"are both −inf at row 0, token 1 \(from 0\)"):
        TokenBatch.from_log_probs(inf, inf, MASK)
    for old, rollout, d in ((inf, LOG_PROBS, -20), (LOG_PROBS, inf, 20)):
        batch = TokenBatch.from_log_probs(old, rollout, MASK)
        assert float(ratio(correct(batch, CorrectionConfig()).log_ratio[0, 1])) == pytest.approx(math.exp(d))
    padding = torch.where(MASK, LOG_PROBS, math.nan)
    assert TokenBatch.from_log_probs(padding, padding, MASK).old_log_probs is padding


def test_a_mask_holds_0_and_1() -> None:
    for odd in (0.5, 2.0, math.nan, -1.0):
        mask = MASK.float()
        mask[1, 2] = odd
        with pytest.raises(UsageError, match=rf"response_mask is {odd:g} at row 1, token 2 \(from 0\); it must be 1"):
            TokenBatch.from_log_probs(LOG_PROBS, LOG_PROBS, mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
def test_from_log_probs_takes_any_mask_dtype(dtype: torch.dtype) -> None:
    batch = TokenBatch.from_log_probs(LOG_PROBS, LOG_PROBS, MASK.to(dtype))
    assert torch.equal(batch.response_mask, MASK)


def test_tensors_lists_only_what_is_present() -> None:
    batch = TokenBatch(MASK, LOG_PROBS, rewards=torch.zeros(2))
    assert set(batch.tensors()) == {"response_mask", "rollout_log_probs", "rewards"}


def test_rows_takes_every_present_field() -> None:
    batch = TokenBatch(MASK, LOG_PROBS + torch.tensor([[1.0], [2.0]]), rewards=torch.tensor([5.0, 6.0]))
    second = batch.rows(torch.tensor([1]))
    assert second.rollout_log_probs.tolist() == [[2.0, 2.0, 2.0]]
    assert second.response_mask.tolist() == [[True, False, False]]
    assert second.rewards is not None
    assert second.rewards.tolist() == [6.0]
    assert second.old_log_probs is None


def test_replace_checks_again() -> None:
    with pytest.raises(UsageError, match="old_log_probs has shape"):
        TokenBatch(MASK, LOG_PROBS).replace(old_log_probs=torch.zeros(1, 3))


# --- Moments ---


def pooled(*rows: list[float]) -> Moments:
    """Moments of rows of numbers, one of them padding."""
    x = torch.tensor([[*row, 99.0] for row in rows])
    return moments(x, x < 99).pooled()


def test_rows_pool_to_the_batch() -> None:
    """{1, 2} and {−4, 0}: count 4, sum −1, squares 1 + 4 + 16 = 21, from −4 to 2."""
    both = pooled([1.0, 2.0], [-4.0, 0.0])
    assert [float(x) for x in (both.count, both.total, both.squares)] == [4, -1, 21]
    assert [float(x) for x in (both.low, both.high)] == [-4, 2]
    assert both.total.dtype == torch.float64


def test_measured_batches_merge() -> None:
    """{1, 2} and {−4}: count 3, sum −1, squares 21, from −4 to 2."""
    left, right = (MomentTable.of({"x": pooled(row)}) for row in ([1.0, 2.0], [-4.0]))
    assert left.merge(right).table.tolist() == [[3, -1, 21, -4, 2]]


def test_only_like_merges_with_like() -> None:
    one = pooled([1.0])
    with pytest.raises(UsageError, match="different quantities cannot be merged: x with x, y"):
        MomentTable.of({"x": one}).merge(MomentTable.of({"x": one, "y": one}))


PAIR = torch.full((1, 2), -1.0)
NO_TENSORS = {
    "nothing": (None, "is missing: without it there is nothing to correct"),
    "a list": ([[-1.0, -1.0]], "must be a tensor; got list. torch.as_tensor converts"),
    "an array": (PAIR.numpy(), "must be a tensor; got ndarray"),
    "a sparse tensor": (PAIR.to_sparse(), "must be a dense tensor; got the layout sparse_coo"),
    "eight bits": (PAIR.to(torch.float8_e4m3fn), "has dtype torch.float8_e4m3fn; convert it to float32"),
}


@pytest.mark.parametrize("what", NO_TENSORS)
@pytest.mark.parametrize("place", range(3))
def test_what_is_no_tensor_is_refused(what: str, place: int) -> None:
    value, message = NO_TENSORS[what]
    given: list[Any] = [PAIR, PAIR, torch.ones(1, 2)]
    given[place] = value
    with pytest.raises(UsageError, match=message):
        TokenBatch.from_log_probs(*given)
    with pytest.raises(UsageError, match=f"advantages {message}" if value is not None else "missing"):
        TokenBatch(torch.ones(1, 2, dtype=torch.bool), PAIR if value is not None else None, advantages=value)  # pyright: ignore[reportArgumentType]


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="old_log_probs is on meta, response_mask on cpu"):
        TokenBatch(torch.ones(1, 2, dtype=torch.bool), PAIR, old_log_probs=PAIR.to("meta"))


@pytest.mark.parametrize("config", [None, "decoupled_token_is", PRESETS["decoupled_token_is"]])
def test_a_correction_takes_a_configuration(config: Any) -> None:
    batch = TokenBatch.from_log_probs(PAIR, PAIR, torch.ones(1, 2))
    for function in (correct, evaluate):
        with pytest.raises(UsageError, match="takes a TokenBatch and a CorrectionConfig"):
            function(batch, config)
    with pytest.raises(UsageError, match=r"got dict and CorrectionConfig"):
        correct({}, CorrectionConfig())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", [3, None, 2.5])
def test_the_name_of_a_preset_is_a_text(name: Any) -> None:
    with pytest.raises(UsageError, match=f"unknown preset {name!r}"):
        preset(name)
