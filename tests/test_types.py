"""Every wrong value is refused where it enters, by a sentence that says what was got; explain() says the numbers."""

import math
from typing import Any

import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, preset
from rlcorr.errors import UsageError
from rlcorr.types import RULE_NAMES, Moments

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
        ({"log_probs": torch.zeros(2, 3, dtype=torch.bool)}, "log_probs must hold floating-point"),
        ({"ref_log_probs": torch.zeros(6)}, r"ref_log_probs has shape \(6,\)"),
        ({"values": torch.zeros(2, 4)}, r"values has shape \(2, 4\)"),
        ({"advantages": torch.zeros(2)}, r"advantages has shape \(2,\)"),
        ({"returns": torch.tensor(0.0)}, r"returns has shape \(\)"),
        ({"response_ids": torch.zeros(2, 4, dtype=torch.int64)}, r"response_ids has shape \(2, 4\)"),
        ({"rewards": torch.zeros(3)}, r"rewards has shape \(3,\); it must be \(2,\)"),
        ({"rewards": torch.tensor(1.0)}, r"rewards has shape \(\); it must be \(2,\)"),
        ({"rewards": torch.zeros(2, 3)}, r"rewards has shape \(2, 3\); it must be \(2,\)"),
        ({"group_ids": torch.zeros(1)}, r"group_ids has shape \(1,\)"),
        ({"policy_versions": torch.zeros(2, 1)}, r"policy_versions has shape \(2, 1\)"),
        ({"prompt_ids": torch.zeros(3, 5)}, r"prompt_ids has shape \(3, 5\); it must be \(2, P\)"),
        ({"prompt_ids": torch.zeros(2)}, r"prompt_ids has shape \(2,\); it must be \(2, P\)"),
        ({"prompt_mask": torch.zeros(3, 5)}, r"prompt_mask has shape \(3, 5\)"),
    ],
)
def test_batch_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenBatch(**{"response_mask": MASK, "rollout_log_probs": LOG_PROBS, **fields})


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


# --- RejectionRule ---


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": "row"}, "unknown level 'row'.*Known: sequence, token"),
        ({"level": None}, "unknown level 'None'"),
        ({"divergence": "k4"}, "unknown divergence 'k4'.*binary_kl, k1, k2, k3"),
        ({"level": "sequence"}, "unknown reduce 'none'.*max, mean, sum"),
        ({"level": "sequence", "reduce": "median"}, "unknown reduce 'median'"),
        ({"reduce": "mean"}, "a token rule reduces nothing: reduce must be None, got 'mean'"),
        ({"lower": None}, "token_k1 needs lower and upper bounds on the ratio"),
        ({"divergence": "k3"}, "token_k3 is a divergence ≥ 0 and takes only an upper bound; got lower=0.5"),
        ({"upper": 0.0}, "the upper bound must be > 0; got 0.0"),
        ({"lower": -0.5}, "the lower bound must be > 0; got -0.5"),
        ({"upper": math.nan}, "the upper bound must be > 0; got nan"),
        ({"upper": True}, "the upper bound must be a number; got True"),
        ({"upper": "2"}, "the upper bound must be a number; got '2'"),
        ({"upper": None}, "the upper bound must be a number; got None"),
        ({"lower": 3.0}, "lower bound 3.0 is above upper bound 2.0"),
    ],
)
def test_rule_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RejectionRule(**{"level": "token", "divergence": "k1", "lower": 0.5, "upper": 2.0, **fields})


def test_named_suggests_the_nearest_rule() -> None:
    with pytest.raises(UsageError, match=r"unknown rejection rule 'seq_maen_k1'\. Did you mean 'seq_mean_k1'"):
        RejectionRule.named("seq_maen_k1", upper=1.0)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_names_go_both_ways(name: str) -> None:
    rule = RejectionRule.named(name, upper=2.0, lower=0.5 if "k1" in name else None)
    assert rule.name == name


def test_equal_bounds_are_allowed_and_infinite_ones_too() -> None:
    assert RejectionRule.named("token_k1", lower=1.0, upper=1.0).lower == 1.0
    assert RejectionRule.named("token_k1", lower=0.5, upper=math.inf).upper == math.inf


def test_largest_ratio_needs_no_lower_bound() -> None:
    assert RejectionRule.named("seq_max_k1", upper=3.0).lower is None


# --- CorrectionConfig ---

RULE = RejectionRule.named("token_k2", upper=1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rollout_is": "tokens"}, "unknown rollout_is 'tokens'. Did you mean 'token'"),
        ({"rollout_is": False}, "unknown rollout_is 'False'"),
        ({"rollout_is_mode": "clip"}, "unknown rollout_is_mode 'clip'.*mask, truncate"),
        ({"loss_type": "ppo"}, "unknown loss_type 'ppo'.*ppo_clip, reinforce"),
        ({"denominator": "mean"}, "unknown denominator 'mean'.*fixed, kept"),
        ({"rollout_is_threshold": 0}, "rollout_is_threshold: the upper bound must be > 0; got 0"),
        ({"rollout_is_threshold": -1.0}, "the upper bound must be > 0; got -1.0"),
        ({"rollout_is_threshold": math.nan}, "the upper bound must be > 0; got nan"),
        ({"rollout_is_threshold": True}, "the upper bound must be a number; got True"),
        ({"rollout_is_threshold": "0.5_2"}, "the upper bound must be a number; got '0.5_2'"),
        # In verl, null here silently switches the weights off.
        ({"rollout_is": "token", "rollout_is_threshold": None}, "the upper bound must be a number; got None"),
        ({"rollout_is_threshold_lower": 0.0}, "the lower bound must be > 0; got 0.0"),
        ({"rollout_is_threshold_lower": 2.5}, "rollout_is_threshold: lower bound 2.5 is above upper bound 2.0"),
        ({"rollout_rs": "token_k1"}, "rollout_rs must be a tuple of RejectionRule; got 'token_k1'"),
        ({"rollout_rs": ("token_k1",)}, r"rollout_rs must be a tuple of RejectionRule; got \('token_k1',\)"),
        ({"rollout_rs": [RULE]}, "rollout_rs must be a tuple of RejectionRule"),
        ({"rollout_rs": (RULE, RULE)}, "each rejection rule may appear once; got token_k2, token_k2"),
        ({"bypass_mode": "false"}, "bypass_mode must be True or False; got 'false'"),
        ({"rollout_is_batch_normalize": 1}, "rollout_is_batch_normalize must be True or False; got 1"),
        ({"loss_type": "reinforce"}, "loss_type='reinforce' needs bypass_mode=True"),
        ({"rollout_is_batch_normalize": True}, "has nothing to normalise: rollout_is is None"),
    ],
)
def test_config_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CorrectionConfig(**fields)


def test_a_config_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        CorrectionConfig().rollout_is_threshold = 5.0  # pyright: ignore[reportAttributeAccessIssue]


# --- explain ---


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("disabled", ["No importance weights", "PPO clips π_θ/π_old", "over all response tokens"]),
        ("decoupled_token_is", ["its own ratio", "above 2 becomes 2"]),
        ("decoupled_token_icepop", ["its own ratio", "outside [0.5, 5] becomes 0"]),
        ("decoupled_seq_is_rs", ["product of its sequence's ratios", "seq_sum_k1", "0.5 ≤ product of", "≤ 2."]),
        ("decoupled_geo_rs", ["No importance weights", "0.999 ≤ geometric mean of the sequence's ratios ≤ 1.001"]),
        ("decoupled_k3_rs_seq_tis", ["above 2", "seq_mean_k3 keeps a sequence while mean", "k3 ≤ 0.01"]),
        ("bypass_ppo_clip", ["π_θ/π_rollout directly", "(bypass)"]),
        ("bypass_pg_is", ["without clipping", "(bypass)", "above 2"]),
    ],
)
def test_explain_says_what_a_preset_does(name: str, phrases: list[str]) -> None:
    told = preset(name).explain()
    assert [phrase for phrase in phrases if phrase not in told] == []


def test_explain_tells_everything_that_was_changed() -> None:
    told = CorrectionConfig(
        rollout_is="geometric",
        rollout_is_threshold=3.5,
        rollout_is_batch_normalize=True,
        rollout_rs=(RejectionRule.named("seq_max_k1", upper=7.25), RejectionRule.named("token_binary_kl", upper=0.125)),
        denominator="kept",
    ).explain()
    assert "geometric mean of its sequence's ratios" in told
    assert "above 3.5" in told
    assert "divided by their mean over the kept tokens" in told
    assert "largest ratio of the sequence ≤ 7.25" in told
    assert "token_binary_kl keeps a token while binary_kl ≤ 0.125" in told
    assert "averaged over the kept tokens only" in told


# --- Moments ---


def test_moments_merge() -> None:
    """{1, 2} and {−4}: count 3, sum −1, squares 1 + 4 + 16 = 21, from −4 to 2."""
    left = Moments(*(torch.tensor(x) for x in (2.0, 3.0, 5.0, 1.0, 2.0)))
    right = Moments(*(torch.tensor(x) for x in (1.0, -4.0, 16.0, -4.0, -4.0)))
    both = left.merge(right)
    assert [float(x) for x in (both.count, both.total, both.squares, both.low, both.high)] == [3, -1, 21, -4, 2]
