"""A replacement for verl's `trainer/ppo/rollout_corr_helper.py` (0.9.1), computed by our `correct` and `measure`.

Signatures, exceptions, keys, signs, extremes and the order of normalisation are verl's; `make peers` runs verl's own
tests on this module. Two things differ: weights on padding are 0, even if log-probs there are NaN, and bfloat16 is
converted to float32. Names that are not here come from verl's own helper: verl main's score centering imports a private
one.
"""

import functools
import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.masked import masked_mean
from rlcorr.measuring.moments import Moments, flag_moments, moments
from rlcorr.ratios import SAFETY_BOUND, ratio
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl import helper_metrics
from rlcorr.systems.verl.helper_measured import HelperResult, normalised, to_host
from rlcorr.systems.verl.options import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    TOKEN_LEVEL_ROLLOUT_RS_OPTIONS,
    rejection_rules,
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

HELPER = "verl.trainer.ppo.rollout_corr_helper"
"""The module that this one replaces."""
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
    """Return the weights, the mask without the rejected tokens, and the metrics with prefix.

    The weights are a DataProto with rollout_is_weights (B, T), or None. Raises ValueError for wrong shapes, names and
    numbers and for a mask without a token, TypeError for a threshold that is neither a number nor text.
    """
    if not response_mask.any():
        raise ValueError(NO_TOKEN)
    for other in (rollout_log_prob, response_mask):
        if old_log_prob.shape != other.shape:
            raise ValueError(f"old_log_prob has shape {tuple(old_log_prob.shape)}, another {tuple(other.shape)}.")
    weighted = rollout_is is not None and rollout_is_threshold is not None
    config = weights_config(rollout_is, rollout_is_threshold) if weighted else CorrectionConfig()
    rules, error = _rules_or_error(rollout_rs, rollout_rs_threshold)
    result = HelperResult.from_log_probs(old_log_prob, rollout_log_prob, response_mask, config, rules)
    metrics, weights = {}, None
    if weighted:
        weights, metrics = _weights(result, config, rollout_is_batch_normalize, old_log_prob.dtype)
    if error is not None:  # verl computes the weights first, and may raise there
        raise error
    if rules:
        metrics |= result.rejection_metrics()
    metrics |= helper_metrics.offpolicy_metrics(result.moments, result.empty_rows, result.k3_kl)
    return _data_proto(weights), result.kept, {PREFIX + key: x for key, x in metrics.items()}


def _rules_or_error(rollout_rs: Any, threshold: Any) -> tuple[tuple[RejectionRule, ...], Exception | None]:
    try:
        return (() if rollout_rs is None else rejection_rules(rollout_rs, threshold)), None
    except (ValueError, TypeError) as error:
        return (), error


def _weights(
    result: HelperResult, config: CorrectionConfig, normalise: bool, dtype: torch.dtype
) -> tuple[Tensor, dict[str, float]]:
    weights = result.weights.to(dtype)
    metrics = helper_metrics.weight_metrics(result.moments, config, result.empty_rows)
    if normalise:
        level = config.rollout_is or "token"
        weights, metrics["rollout_is_batch_norm_factor"] = normalised(weights, result.mask.bool(), level)
    return weights, metrics


def compute_rollout_correction_weights(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Return the weights (B, T), 0 on padding, and their metrics without prefix."""
    config = weights_config(rollout_is, rollout_is_threshold)
    if not response_mask.any():
        raise ValueError(NO_TOKEN)
    result = HelperResult.from_log_probs(log_ratio, torch.zeros_like(log_ratio), response_mask, config, ())
    return _weights(result, config, rollout_is_batch_normalize, log_ratio.dtype)


def compute_rollout_rejection_mask(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the mask without the rejected tokens, and the metrics of every rule without prefix."""
    # verl checks these two before it returns for an empty batch, and everything else after it.
    if not isinstance(rollout_rs, str) or rollout_rs_threshold is None:
        rejection_rules(rollout_rs, rollout_rs_threshold)
    if log_ratio.shape[0] == 0:
        return response_mask, {}
    rules = rejection_rules(rollout_rs, rollout_rs_threshold)
    if not response_mask.any():
        raise ValueError(NO_TOKEN)
    no_weights = CorrectionConfig()
    result = HelperResult.from_log_probs(log_ratio, torch.zeros_like(log_ratio), response_mask, no_weights, rules)
    return result.kept, result.rejection_metrics()


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
    """Return the metrics of one statistic (B, T), without prefix. The statistic of k1 is −log r, as in verl."""
    mask, low, high = response_mask.bool(), rollout_rs_threshold_lower, rollout_rs_threshold
    if not mask.any():
        raise ValueError(NO_TOKEN)
    rows = masked_mean(rs_statistic, mask, -1) if per_sequence_values is None else per_sequence_values
    rows, valid_rows = rows.reshape(len(mask)), seq_valid_mask.bool()
    row_sides = {"low": flag_moments(rows < low, valid_rows), "high": flag_moments(rows > high, valid_rows)}
    token_sides = {side: flag_moments(beyond, mask).pooled() for side, beyond in
                   (("low", rs_statistic < low), ("high", rs_statistic > high))}  # fmt: skip
    measured = {
        "statistic": moments(rs_statistic, mask).pooled(),
        "clamped": moments(rs_statistic.clamp(low if apply_lower_threshold else 0.0, high), mask).pooled(),
        "seq": moments(rows, valid_rows),
        "seq_deviation": moments(rows.abs(), valid_rows),
        **(row_sides if level == "sequence" else token_sides),
        **{f"seq_{side}": share for side, share in row_sides.items()},
    }
    return helper_metrics.statistic_metrics(
        to_host(measured), option_name, sequence=level == "sequence", two_sided=apply_lower_threshold
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
    """Return the metrics of weights (B, T), without prefix. `log_ratio_for_metrics` is (B, T), or (B, 1) row sums."""
    mask, upper = response_mask.bool(), rollout_is_threshold
    if not mask.any():
        raise ValueError(NO_TOKEN)
    lower = 1 / upper if rollout_is_threshold_lower is None else rollout_is_threshold_lower
    weights, raw = rollout_is_weights, raw_rollout_is_weights
    all_rows = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    rows, raw_rows = masked_mean(weights, mask, -1), masked_mean(raw, mask, -1)
    bounded = weights.clamp(0.0, upper)
    sequence = rollout_is == "sequence"
    tested = ratio(log_ratio_for_metrics.reshape(len(mask))) if sequence else raw
    tested_mask = all_rows if sequence else mask

    def pooled(x: Moments) -> Moments:
        return x.double() if sequence else x.pooled()

    measured = {
        "weight": moments(weights, mask).pooled(),
        "bounded": moments(bounded, mask).pooled(),
        "bounded_excess": moments(bounded - 1, mask).pooled(),
        "raw_weight": pooled(moments(tested, tested_mask)),
        "weight_high": pooled(flag_moments(tested > upper, tested_mask)),
        "weight_low": pooled(flag_moments(tested < lower, tested_mask)),
        "seq_weight": moments(rows, all_rows),
        "seq_weight_deviation": moments((rows - 1).abs(), all_rows),
        "seq_raw_high": flag_moments(raw_rows > upper, all_rows),
        "seq_raw_low": flag_moments(raw_rows < lower, all_rows),
    }
    return helper_metrics.weight_metrics(to_host(measured), weights_config(rollout_is, upper), 0)


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor
) -> dict[str, Any]:
    """Return how far the policies are apart, without prefix; only the perplexity if there is no rollout_log_prob."""
    assert response_mask.any(), "Expected at least one valid token in response_mask"
    other = old_log_prob if rollout_log_prob is None else rollout_log_prob
    result = HelperResult.from_log_probs(old_log_prob, other, response_mask, CorrectionConfig(), ())
    metrics = helper_metrics.offpolicy_metrics(result.moments, result.empty_rows, result.k3_kl)
    return {key: metrics[key] for key in metrics if rollout_log_prob is not None or key.startswith("training_")}


def compute_rollout_corr_metrics_from_logprobs(
    log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor
) -> dict[str, float]:
    """Return how far π_θ is from π_rollout, with prefix."""
    metrics = compute_offpolicy_metrics(log_prob, rollout_log_prob, response_mask)
    return {PREFIX + key: value for key, value in metrics.items()}


def compute_rollout_correction_and_add_to_batch(batch: Any, rollout_corr_config: Any) -> tuple[Any, dict[str, float]]:
    """Return verl's DataProto with a new response_mask and, if configured, rollout_is_weights; and the metrics."""
    options = {
        name: rollout_corr_config.get(name, default)
        for name, default in (
            ("rollout_is", None), ("rollout_is_threshold", 2.0), ("rollout_is_batch_normalize", False),
            ("rollout_rs", None), ("rollout_rs_threshold", None),
        )
    }  # fmt: skip
    tensors = batch.batch
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        tensors["old_log_probs"], tensors["rollout_log_probs"], tensors["response_mask"], **options
    )
    tensors["response_mask"] = mask
    return (batch if weights is None else batch.union(weights)), metrics


def apply_bypass_mode(batch: Any, rollout_corr_config: Any = None, policy_loss_config: Any = None) -> None:
    """Replace old_log_probs by rollout_log_probs, and set verl's loss to bypass_mode."""
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


def __getattr__(name: str) -> Any:
    """Return a name of verl's own helper. Raises AttributeError if it has none of this name, or without verl."""
    if name.startswith("__"):  # asked for by Python and by tools, of every module
        raise AttributeError(name)
    present = sys.modules.get(HELPER)
    return getattr(_verls_own() if present in (None, sys.modules[__name__]) else present, name)


@functools.cache
def _verls_own() -> ModuleType:
    """Load verl's own helper without changing `sys.modules`, where this module has its name."""
    try:
        package = importlib.import_module(HELPER.rpartition(".")[0])
    except ImportError as error:
        raise AttributeError(f"verl's own helper is not installed: {error}") from error
    spec = PathFinder.find_spec(HELPER, package.__path__)
    if spec is None or spec.loader is None:
        raise AttributeError(f"{package.__name__} has no {HELPER}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
