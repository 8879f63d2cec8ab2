"""verl's `trainer/ppo/rollout_corr_helper.py` (0.9.1) once more: its functions, computed by `correct` and `measure`.

Signatures, exceptions, keys, signs, extremes and the order of normalisation are verl's; `make peers` runs verl's own
tests on it. What differs: weights on padding are 0, also where log-probs there are NaN; bfloat16 is raised to float32.
"""

import importlib
from typing import Any

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.masked import masked_mean
from rlcorr.measuring.moments import Moments, moments, shares
from rlcorr.ratios import SAFETY_BOUND, ratio
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl import helper_metrics
from rlcorr.systems.verl.helper_measured import Seen, normalised, numbers
from rlcorr.systems.verl.options import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    TOKEN_LEVEL_ROLLOUT_RS_OPTIONS,
    rules_of,
    weights_config,
)

__all__ = [
    "SAFETY_BOUND",
    "SUPPORTED_ROLLOUT_RS_OPTIONS",
    "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS",
    "apply_bypass_mode",
    "compute_is_metrics",
    "compute_offpolicy_metrics",
    "compute_rollout_corr_metrics_from_logprobs",
    "compute_rollout_correction_and_add_to_batch",
    "compute_rollout_correction_and_rejection_mask",
    "compute_rollout_correction_weights",
    "compute_rollout_rejection_mask",
    "compute_rs_metrics",
]

PREFIX = "rollout_corr/"
NO_TOKEN = "response_mask must contain at least one valid token (1)."


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Any, Tensor, dict[str, float]]:
    """(DataProto with rollout_is_weights (B, T) or None, mask without the rejected tokens, metrics with prefix).

    Raises ValueError for shapes, names, numbers and a mask without a token, TypeError for a threshold of another kind.
    """
    mask = response_mask.bool()
    if not mask.any():
        raise ValueError(NO_TOKEN)
    for other in (rollout_log_prob, response_mask):
        if old_log_prob.shape != other.shape:
            raise ValueError(f"old_log_prob has shape {tuple(old_log_prob.shape)}, another {tuple(other.shape)}.")
    weighted = rollout_is is not None and rollout_is_threshold is not None
    config = weights_config(rollout_is, rollout_is_threshold) if weighted else CorrectionConfig()
    rules, wrong = _rules_or_error(rollout_rs, rollout_rs_threshold)
    seen = Seen.of_pair(old_log_prob, rollout_log_prob, mask, config, rules)
    report, weights = {}, None
    if weighted:
        weights, report = _weights(seen, config, rollout_is_batch_normalize, old_log_prob.dtype)
    if wrong is not None:  # verl looks at the weights first, and may raise there
        raise wrong
    if rules:
        report |= seen.rejection()
    report |= helper_metrics.offpolicy(seen.of, seen.empty, seen.k3_kl)
    return _data_proto(weights), seen.kept(response_mask), {PREFIX + key: value for key, value in report.items()}


def _rules_or_error(rollout_rs: Any, threshold: Any) -> tuple[tuple[RejectionRule, ...], Exception | None]:
    try:
        return (() if rollout_rs is None else rules_of(rollout_rs, threshold)), None
    except (ValueError, TypeError) as error:
        return (), error


def _weights(
    seen: Seen, config: CorrectionConfig, normalise: bool, dtype: torch.dtype
) -> tuple[Tensor, dict[str, float]]:
    weights, report = seen.weights.to(dtype), helper_metrics.of_weights(seen.of, config, seen.empty)
    if normalise:
        level = config.rollout_is or "token"
        weights, report["rollout_is_batch_norm_factor"] = normalised(weights, seen.mask, level)
    return weights, report


def compute_rollout_correction_weights(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Weights (B, T), 0 on padding, and their metrics without prefix."""
    config = weights_config(rollout_is, rollout_is_threshold)
    if not response_mask.any():
        raise ValueError(NO_TOKEN)
    seen = Seen.of_pair(log_ratio, torch.zeros_like(log_ratio), response_mask, config, ())
    return _weights(seen, config, rollout_is_batch_normalize, log_ratio.dtype)


def compute_rollout_rejection_mask(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The mask without the rejected tokens, and metrics of every rule without prefix."""
    if not isinstance(rollout_rs, str) or rollout_rs_threshold is None:
        rules_of(rollout_rs, rollout_rs_threshold)
    if log_ratio.shape[0] == 0:
        return response_mask, {}
    rules = rules_of(rollout_rs, rollout_rs_threshold)
    if not response_mask.any():
        raise ValueError(NO_TOKEN)
    seen = Seen.of_pair(log_ratio, torch.zeros_like(log_ratio), response_mask, CorrectionConfig(), rules)
    return seen.kept(response_mask), seen.rejection()


def compute_rs_metrics(
    option_name: str,
    rs_statistic: Tensor,
    response_mask: Tensor,
    seq_valid_mask: Tensor,
    *,
    level: str,
    per_sequence_values: Tensor | None,
    rollout_rs_threshold: float,
    rollout_rs_threshold_lower: float,
    apply_lower_threshold: bool,
) -> dict[str, float]:
    """The metrics of one statistic (B, T) as verl has it, for k1 −log r; without prefix."""
    mask, low, high = response_mask.bool(), rollout_rs_threshold_lower, rollout_rs_threshold
    if not mask.any():
        raise ValueError(NO_TOKEN)
    rows = masked_mean(rs_statistic, mask, -1) if per_sequence_values is None else per_sequence_values
    rows, some = rows.reshape(len(mask)), seq_valid_mask.bool()
    of_rows = {"low": shares(rows < low, some), "high": shares(rows > high, some)}
    of_tokens = {side: shares(beyond, mask).pooled() for side, beyond in
                 (("low", rs_statistic < low), ("high", rs_statistic > high))}  # fmt: skip
    columns = {
        "statistic": moments(rs_statistic, mask).pooled(),
        "clamped": moments(rs_statistic.clamp(low if apply_lower_threshold else 0.0, high), mask).pooled(),
        "seq": moments(rows, some),
        "seq_deviation": moments(rows.abs(), some),
        **(of_rows if level == "sequence" else of_tokens),
        **{f"seq_{side}": share for side, share in of_rows.items()},
    }
    return helper_metrics.statistics(
        numbers(columns), option_name, sequence=level == "sequence", two_sided=apply_lower_threshold
    )


def compute_is_metrics(
    rollout_is_weights: Tensor,
    raw_rollout_is_weights: Tensor,
    log_ratio_for_metrics: Tensor,
    response_mask: Tensor,
    rollout_is: str,
    rollout_is_threshold: float,
    rollout_is_threshold_lower: float | None = None,
) -> dict[str, float]:
    """The metrics of weights (B, T); log_ratio_for_metrics is (B, T), or the (B, 1) sums of sequence weights."""
    mask, upper = response_mask.bool(), rollout_is_threshold
    if not mask.any():
        raise ValueError(NO_TOKEN)
    lower = 1 / upper if rollout_is_threshold_lower is None else rollout_is_threshold_lower
    weights, raw = rollout_is_weights, raw_rollout_is_weights
    every = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    rows, raw_rows = masked_mean(weights, mask, -1), masked_mean(raw, mask, -1)
    bounded = weights.clamp(0.0, upper)
    sequence = rollout_is == "sequence"
    tested = ratio(log_ratio_for_metrics.reshape(len(mask))) if sequence else raw
    where = every if sequence else mask

    def pooled(x: Moments) -> Moments:
        return x.double() if sequence else x.pooled()

    columns = {
        "weight": moments(weights, mask).pooled(),
        "bounded": moments(bounded, mask).pooled(),
        "bounded_excess": moments(bounded - 1, mask).pooled(),
        "raw_weight": pooled(moments(tested, where)),
        "weight_high": pooled(shares(tested > upper, where)),
        "weight_low": pooled(shares(tested < lower, where)),
        "seq_weight": moments(rows, every),
        "seq_weight_deviation": moments((rows - 1).abs(), every),
        "seq_raw_high": shares(raw_rows > upper, every),
        "seq_raw_low": shares(raw_rows < lower, every),
    }
    return helper_metrics.of_weights(numbers(columns), weights_config(rollout_is, upper), 0)


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor
) -> dict[str, Any]:
    """How far the policies are apart, without prefix; without rollout_log_prob the trainer's perplexity alone."""
    assert response_mask.any(), "Expected at least one valid token in response_mask"
    other = old_log_prob if rollout_log_prob is None else rollout_log_prob
    seen = Seen.of_pair(old_log_prob, other, response_mask, CorrectionConfig(), ())
    report = helper_metrics.offpolicy(seen.of, seen.empty, seen.k3_kl)
    return {key: report[key] for key in report if rollout_log_prob is not None or key.startswith("training_")}


def compute_rollout_corr_metrics_from_logprobs(
    log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor
) -> dict[str, float]:
    """How far π_θ is from π_rollout, with prefix."""
    report = compute_offpolicy_metrics(log_prob, rollout_log_prob, response_mask)
    return {PREFIX + key: value for key, value in report.items()}


def compute_rollout_correction_and_add_to_batch(batch: Any, rollout_corr_config: Any) -> tuple[Any, dict[str, float]]:
    """verl's DataProto with its response_mask replaced and, where weights are asked for, rollout_is_weights."""
    options = {
        name: rollout_corr_config.get(name, default)
        for name, default in (
            ("rollout_is", None), ("rollout_is_threshold", 2.0), ("rollout_is_batch_normalize", False),
            ("rollout_rs", None), ("rollout_rs_threshold", None),
        )
    }  # fmt: skip
    tensors = batch.batch
    weights, mask, report = compute_rollout_correction_and_rejection_mask(
        tensors["old_log_probs"], tensors["rollout_log_probs"], tensors["response_mask"], **options
    )
    tensors["response_mask"] = mask
    return (batch if weights is None else batch.union(weights)), report


def apply_bypass_mode(batch: Any, rollout_corr_config: Any = None, policy_loss_config: Any = None) -> None:
    """rollout_log_probs take the place of old_log_probs, and the loss becomes verl's bypass_mode."""
    if "rollout_log_probs" not in batch.batch:
        raise ValueError("bypass_mode=True requires rollout_log_probs in batch: set calculate_log_probs=true.")
    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
    with importlib.import_module("omegaconf").open_dict(policy_loss_config):
        policy_loss_config["rollout_correction"] = rollout_corr_config
        policy_loss_config["loss_mode"] = "bypass_mode"


def _data_proto(weights: Tensor | None) -> Any:
    if weights is None:
        return None
    return importlib.import_module("verl.protocol").DataProto.from_dict(tensors={"rollout_is_weights": weights})
