"""The gap between engine and trainer in two parts: that of the engine's numerics, and that of the weights' age.

π_sampled is the policy of the weights that sampled a token, in the arithmetic of the trainer. With it,

    log π_old − log π_rollout = (log π_sampled − log π_rollout) + (log π_old − log π_sampled),
              d                =            engine              +            age.

Each part is a batch of its own, so that everything in this library measures and corrects it.
"""

from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct, old_log_probs
from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.measuring.measure import evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.ratios import log_ratio
from rlcorr.types import CorrectionResult, TokenBatch

PARTS = ("engine", "age")
PART_METRICS = ("k3_kl", "abs_log_ratio", "abs_log_ratio_max", "is_ratio_mean", "ratio_eff_sample_size")
"""Metrics of the whole gap that each part has, too, as `rollout_corr/engine_k3_kl`, `rollout_corr/age_k3_kl` …"""


def engine_part(batch: TokenBatch) -> TokenBatch:
    """Return the batch of the engine's part: π_sampled in the place of π_old. Raises `UsageError` without it.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0]]), torch.tensor([[-4.0]]), torch.ones(1, 1))
    >>> correct(engine_part(batch.replace(sampled_log_probs=torch.tensor([[-3.0]]))), CorrectionConfig()).log_ratio
    tensor([[1.]])
    """
    return batch.replace(old_log_probs=_sampled(batch))


def age_part(batch: TokenBatch) -> TokenBatch:
    """Return the batch of the age's part: π_sampled in the place of π_rollout. Raises `UsageError` without it.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0]]), torch.tensor([[-4.0]]), torch.ones(1, 1))
    >>> correct(age_part(batch.replace(sampled_log_probs=torch.tensor([[-3.0]]))), CorrectionConfig()).log_ratio
    tensor([[2.]])
    """
    return batch.replace(rollout_log_probs=_sampled(batch))


def correct_parts(
    batch: TokenBatch, engine: CorrectionConfig, age: CorrectionConfig
) -> tuple[CorrectionResult, CorrectionResult, CorrectionResult]:
    """Correct each part by its own configuration; return both results and the two together.

    Together, the weight of a token is the product of its two weights, and it is kept if both parts keep it. In
    `rejected_by`, rules of `age` are numbered after those of `engine`. Without bounds and batch normalisation the
    product is the weight of the whole gap; bounds make a difference, because each part is bounded on its own.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0]]), torch.tensor([[-4.0]]), torch.ones(1, 1))
    >>> capped = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
    >>> correct_parts(batch.replace(sampled_log_probs=torch.tensor([[-3.0]])), capped, capped)[2].weights
    tensor([[4.]])

    Raises:
        UsageError: without sampled_log_probs, in bypass mode, and as `correct` does.
    """
    if engine.bypass_mode or age.bypass_mode:
        raise UsageError("the two parts need π_old, which bypass_mode replaces: leave it out in both configurations.")
    by_engine, by_age = correct(engine_part(batch), engine), correct(age_part(batch), age)
    later = (by_age.rejected_by + len(engine.rollout_rs)).where(by_age.rejected_by > 0, 0)
    keep = by_engine.keep_mask & by_age.keep_mask
    whole = CorrectionResult(
        log_ratio=by_engine.log_ratio + by_age.log_ratio,
        weights=by_engine.weights * by_age.weights,
        keep_mask=keep,
        rejected_by=by_engine.rejected_by.where(by_engine.rejected_by > 0, later).to(by_engine.rejected_by.dtype),
    )
    return by_engine, by_age, whole


def correlation_of_parts(batch: TokenBatch) -> float:
    """Return the correlation of the two parts over the real tokens; 0 if one of them is constant.

    Σd² of the whole is Σ of the squares of the parts plus twice the sum of their products, so the sizes of the parts
    add up only if they are uncorrelated.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -3.0]]), torch.full((1, 2), -4.0), torch.ones(1, 2))
    >>> round(correlation_of_parts(batch.replace(sampled_log_probs=torch.tensor([[-3.0, -3.5]]))), 6)
    1.0
    """
    mask = batch.response_mask
    parts = [
        log_ratio(old_log_probs(part), part.rollout_log_probs, mask).double()
        for part in (engine_part(batch), age_part(batch))
    ]
    centred = [part - masked_mean(part, mask) for part in parts]
    engine, age = ([float(masked_mean(x * y, mask)) for y in centred] for x in centred)
    both = (engine[0] * age[1]) ** 0.5
    return engine[1] / both if both else 0.0


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


def _sampled(batch: TokenBatch) -> Tensor:
    if batch.sampled_log_probs is None or batch.old_log_probs is None:
        raise UsageError("the parts of a gap need old_log_probs and sampled_log_probs, those of the sampling weights.")
    return batch.sampled_log_probs
