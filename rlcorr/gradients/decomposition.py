"""Where an estimator's gradient leaves the exact one, step by step."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import (
    EXACT_WEIGHTS,
    REPLICATES,
    Interval,
    Replicas,
    bootstrap,
    interval_of,
    length_of,
    reference_lengths,
)
from rlcorr.gradients.contributions import Contributions, contributions, without_rules
from rlcorr.gradients.estimates import difference_noise, mean_gradients
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Decomposition:
    """Lengths of differences, over that of the reference."""

    level: Interval
    """Unbounded weights of this level, or none, against the unbounded product over the sequence."""
    truncation: Interval
    """Bounds on the weights."""
    rejection: Interval
    """The rules, with the denominator as it was."""
    denominator: Interval
    """Counting kept tokens only, and batch normalisation."""


def decompose(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Decomposition:
    """From exact sequence weights to this correction in four steps, each measured on the same answers, so that most of
    the noise cancels; what is left of it is taken off, as in `report`."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    return decomposition(contributions(batch, sketch, stages(correction), loss), replicas)


def stages(correction: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """Five corrections: exact sequence weights, then this one's level, bounds, rules and denominator one by one."""
    bounded = without_rules(correction)
    unbounded = bounded if correction.rollout_is is None else replace(bounded, **_UNBOUNDED)
    return _exact(correction), unbounded, bounded, replace(bounded, rollout_rs=correction.rollout_rs), correction


def decomposition(parts: Sequence[Contributions], replicas: Replicas) -> Decomposition:
    """From the contributions of the five `stages`."""
    unit = reference_lengths(replicas)
    steps = (_apart(before, after, replicas) / unit for before, after in itertools.pairwise(parts))
    return Decomposition(*(interval_of(lengths, signed=False) for lengths in steps))


_UNBOUNDED: dict[str, Any] = {
    "rollout_is_threshold": math.inf, "rollout_is_threshold_lower": None, "rollout_is_mode": "truncate"
}  # fmt: skip


def _exact(correction: CorrectionConfig) -> CorrectionConfig:
    """Unbounded sequence weights on the same loss. A clipped loss in bypass mode takes no weights: its first step has
    the ratio in the loss, token by token, so the policy gradient stands in for it."""
    loss_type = "reinforce" if correction.bypass_mode else correction.loss_type
    return replace(EXACT_WEIGHTS, bypass_mode=correction.bypass_mode, loss_type=loss_type)


def _apart(before: Contributions, after: Contributions, replicas: Replicas) -> Tensor:
    """(1 + R,): the length of the difference of both gradients, without what noise adds to it."""
    difference = mean_gradients(after, replicas.units) - mean_gradients(before, replicas.units)
    return length_of(replicas.without_noise(difference.square(), difference_noise(before, after)))
