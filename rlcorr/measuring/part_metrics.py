"""Metrics of the two parts of a gap: the engine's, and that of the weights' age."""

from rlcorr.config import CorrectionConfig
from rlcorr.gap_split import age_part, correlation_of_parts, engine_part
from rlcorr.measuring.measure import evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.types import TokenBatch

PARTS = ("engine", "age")
PART_METRICS = ("k3_kl", "abs_log_ratio", "abs_log_ratio_max", "is_ratio_mean", "ratio_eff_sample_size")
"""Metrics of the whole gap that each part has, too, as `rollout_corr/engine_k3_kl`, `rollout_corr/age_k3_kl` …"""


def part_metrics(batch: TokenBatch) -> dict[str, float]:
    """Measure both parts before any correction, and their correlation. Raises `UsageError` without sampled_log_probs.

    The k3 of the parts do not add up to that of the whole, unless the parts are independent.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0]]), torch.tensor([[-4.0]]), torch.ones(1, 1))
    >>> numbers = part_metrics(batch.replace(sampled_log_probs=torch.tensor([[-3.0]])))
    >>> numbers["rollout_corr/engine_abs_log_ratio"], numbers["rollout_corr/age_abs_log_ratio"]
    (1.0, 2.0)
    """
    numbers = {f"{PREFIX}parts_correlation": correlation_of_parts(batch)}
    for name, part in zip(PARTS, (engine_part(batch), age_part(batch)), strict=True):
        measured = evaluate(part, CorrectionConfig())[1]
        numbers |= {f"{PREFIX}{name}_{metric}": measured[f"{PREFIX}{metric}"] for metric in PART_METRICS}
    return numbers
