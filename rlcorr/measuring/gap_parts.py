"""The gap between engine and trainer in two parts: that of the engine's numerics, and that of the weights' age.

π_sampled is the policy of the weights that sampled a token, in the arithmetic of the trainer. With it,

    log π_old − log π_rollout = (log π_sampled − log π_rollout) + (log π_old − log π_sampled),
              d                =            engine              +            age.

Each part is a batch of its own, so that everything in this library measures and corrects it.
"""

from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.measuring.measure import evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.ratios import log_ratio
from rlcorr.types import TokenBatch

PARTS = ("engine", "age")
PART_METRICS = ("k3_kl", "abs_log_ratio", "abs_log_ratio_max", "is_ratio_mean", "ratio_eff_sample_size")
"""Metrics of the whole gap that each part has, too, as `rollout_corr/engine_k3_kl`, `rollout_corr/age_k3_kl` …"""


def engine_part(batch: TokenBatch) -> TokenBatch:
    """Return the batch of the engine's part: π_sampled in the place of π_old. Raises `UsageError` without it."""
    return batch.replace(old_log_probs=_sampled(batch))


def age_part(batch: TokenBatch) -> TokenBatch:
    """Return the batch of the age's part: π_sampled in the place of π_rollout. Raises `UsageError` without it."""
    return batch.replace(rollout_log_probs=_sampled(batch))


def correlation_of_parts(batch: TokenBatch) -> float:
    """Return the correlation of the two parts over the real tokens; 0 if one of them is constant.

    Σd² of the whole is Σ of the squares of the parts plus twice the sum of their products, so the sizes of the parts
    add up only if they are uncorrelated.
    """
    mask = batch.response_mask
    engine, age = (
        log_ratio(old_log_probs(part), part.rollout_log_probs, mask)[mask].double()
        for part in (engine_part(batch), age_part(batch))
    )
    engine, age = engine - engine.mean(), age - age.mean()
    both = engine.norm() * age.norm()
    return float(engine @ age / both) if both else 0.0


def part_metrics(batch: TokenBatch) -> dict[str, float]:
    """Measure both parts before any correction, and their correlation. Raises `UsageError` without sampled_log_probs.

    The k3 of the parts do not add up to that of the whole, unless the parts are independent.
    """
    numbers = {f"{PREFIX}parts_correlation": correlation_of_parts(batch)}
    for name, part in zip(PARTS, (engine_part(batch), age_part(batch)), strict=True):
        measured = evaluate(part, CorrectionConfig())[1]
        numbers |= {f"{PREFIX}{name}_{metric}": measured[f"{PREFIX}{metric}"] for metric in PART_METRICS}
    return numbers


def _sampled(batch: TokenBatch) -> Tensor:
    if batch.sampled_log_probs is None or batch.old_log_probs is None:
        raise UsageError("the parts of a gap need old_log_probs and sampled_log_probs, those of the sampling weights.")
    return batch.sampled_log_probs
