"""Every wrong value is refused where it enters, by a sentence that says what was got."""

import math
from typing import Any

import pytest
import torch

from rlcorr import PRESETS, TokenBatch, evaluate
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.ratios import ratio

MASK = torch.tensor([[True, True, False], [True, False, False]])
LOG_PROBS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_mask": MASK.long()}, r"bool tensor \(B, T\); got torch.int64 of shape \(2, 3\)"),
        ({"response_mask": MASK[0]}, r"got torch.bool of shape \(3,\)"),
        ({"rollout_log_probs": None}, "rollout_log_probs is missing"),
        ({"rollout_log_probs": torch.zeros(2, 2)}, r"rollout_log_probs has shape \(2, 2\); response_mask has \(2, 3\)"),
        ({"rollout_log_probs": torch.zeros(2, 3, dtype=torch.int64)}, "floating-point numbers; got torch.int64"),
        ({"old_log_probs": torch.zeros(3, 2)}, r"old_log_probs has shape \(3, 2\)"),
        ({"advantages": torch.zeros(2)}, r"advantages has shape \(2,\)"),
        ({"response_ids": torch.zeros(2, 4, dtype=torch.int64)}, r"response_ids has shape \(2, 4\)"),
        ({"rewards": torch.zeros(3)}, r"rewards has shape \(3,\); it must be \(2,\)"),
        ({"group_ids": torch.zeros(1)}, r"group_ids has shape \(1,\)"),
        ({"policy_versions": torch.zeros(2, 1)}, r"policy_versions has shape \(2, 1\); it must be \(2,\) or \(2, 3\)"),
        ({"prompt_ids": torch.zeros(3, 5)}, r"prompt_ids has shape \(3, 5\); it must be \(2, P\)"),
        ({"top_ids": torch.zeros(2, 3)}, r"top_ids has shape \(2, 3\); it must be \(2, 3, K\)"),
        ({"routed_experts": torch.zeros(2, 3)}, r"routed_experts has shape \(2, 3\); it must be \(2, 3, layers, k\)"),
        (
            {"old_log_probs": LOG_PROBS.bfloat16()},
            "one dtype; got rollout_log_probs torch.float32, old_log_probs",
        ),
        ({"old_log_probs": LOG_PROBS.to("meta")}, "old_log_probs is on meta, response_mask on cpu"),
        ({"advantages": [[0.0] * 3] * 2}, "advantages must be a tensor; got list. torch.as_tensor converts"),
        ({"advantages": LOG_PROBS.to_sparse()}, "advantages must be a dense tensor; got the layout sparse_coo"),
        ({"old_log_probs": LOG_PROBS.to(torch.float8_e4m3fn)}, "has dtype torch.float8_e4m3fn; convert it to float32"),
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


def test_probabilities_are_not_log_probs() -> None:
    """On real tokens: what stands on padding is nobody's business."""
    probabilities = torch.tensor([[0.9, 0.5, 0.0], [0.2, 0.0, 0.0]])
    with pytest.raises(
        UsageError, match=r"old_log_probs must be natural logarithms of probabilities, ≤ 0; got up to 0.9"
    ):
        TokenBatch.from_log_probs(probabilities, LOG_PROBS, MASK)
    # What is on padding does not matter, and log-softmax in bf16 may round up to 0.0078125/2.
    padding = torch.where(MASK, 0.0039, 7.0)
    for mask in (MASK, MASK.long(), MASK.bfloat16()):
        batch = TokenBatch.from_log_probs(padding, padding, mask)
        assert batch.old_log_probs is padding
        assert torch.equal(batch.response_mask, MASK)


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


@pytest.mark.parametrize("config", [None, "decoupled_token_is", PRESETS["decoupled_token_is"]])
def test_a_correction_takes_a_configuration(config: Any) -> None:
    batch = TokenBatch.from_log_probs(LOG_PROBS, LOG_PROBS, MASK)
    for function in (correct, evaluate):
        with pytest.raises(UsageError, match="takes a TokenBatch and a CorrectionConfig"):
            function(batch, config)
