"""The difference between the gradient of a correction and the exact one, split into four steps."""

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
    BootstrapSamples,
    Interval,
    bootstrap,
    difference_noise,
    interval_of,
    length_of,
    mean_gradients,
    reference_lengths,
)
from rlcorr.gradients.contributions import Contributions, contributions, without_rules
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Decomposition:
    """Lengths of four differences between gradients, divided by the length of the reference."""

    level: Interval
    """Unbounded weights of this level (or no weights), compared with the unbounded product over the sequence."""
    truncation: Interval
    """Effect of the bounds on the weights."""
    rejection: Interval
    """Effect of the rules, with the denominator unchanged."""
    denominator: Interval
    """Effect of counting kept tokens only, and of batch normalisation."""


def decompose(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Decomposition:
    """Measure the four steps from exact sequence weights to this correction.

    All steps use the same answers, so most of their noise cancels. The rest is subtracted, as in `report`.
    """
    samples = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    return decomposition(contributions(batch, sketch, stages(correction), loss), samples)


def stages(correction: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """Return five corrections that lead from exact sequence weights to this correction.

    The first has exact sequence weights. Then come the level, bounds, rules and denominator of this correction, one by
    one.
    """
    bounded = without_rules(correction)
    unbounded = bounded if correction.rollout_is is None else replace(bounded, **_UNBOUNDED)
    return _exact(correction), unbounded, bounded, replace(bounded, rollout_rs=correction.rollout_rs), correction


def decomposition(parts: Sequence[Contributions], samples: BootstrapSamples) -> Decomposition:
    """Measure the four steps from the contributions of the five `stages`."""
    unit = reference_lengths(samples)
    distances = (_distance(before, after, samples) / unit for before, after in itertools.pairwise(parts))
    return Decomposition(*(interval_of(lengths, signed=False) for lengths in distances))


_UNBOUNDED: dict[str, Any] = {
    "rollout_is_threshold": math.inf, "rollout_is_threshold_lower": None, "rollout_is_mode": "truncate"
}  # fmt: skip


def _exact(correction: CorrectionConfig) -> CorrectionConfig:
    """Return unbounded sequence weights with the loss of this correction.

    A clipped loss in bypass mode takes no weights: in its first step the ratio is in the loss, token by token. The
    policy gradient (reinforce) replaces it.
    """
    loss_type = "reinforce" if correction.bypass_mode else correction.loss_type
    return replace(EXACT_WEIGHTS, bypass_mode=correction.bypass_mode, loss_type=loss_type)


def _distance(before: Contributions, after: Contributions, samples: BootstrapSamples) -> Tensor:
    """Return the length of the difference of both gradients without noise, (1 + R,)."""
    difference = mean_gradients(after, samples.units) - mean_gradients(before, samples.units)
    return length_of(samples.without_noise(difference.square(), difference_noise(before, after)))
