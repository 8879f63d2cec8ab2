"""Two corrections' gradients on the same answers, and by how much they differ."""

from dataclasses import dataclass

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import REPLICATES, Interval, bootstrap, cosine, interval_of, noises
from rlcorr.gradients.contributions import contributions, covariance, mean_gradients
from rlcorr.gradients.report import GradientReport, report_of, samples_of
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientComparison:
    """Two estimators' gradients on the same bootstrap samples. Differences are B − A, in units of the on-policy
    gradient; their intervals are those of the paired differences, so noise that both share cancels."""

    a: GradientReport
    b: GradientReport
    bias: Interval
    noise: Interval
    error: Interval
    cosine: Interval
    """Of B with the on-policy gradient, less that of A."""
    between: Interval
    """Cosine of the two gradients of this batch: do the two steps go the same way?"""
    expected: Interval
    """Cosine of the two expected gradients, without what their common noise adds; NaN where noise explains one."""
    b_is_better: float
    """Share of the bootstrap samples in which B has the smaller error; a tie counts half."""


def compare_gradients(
    batch: TokenBatch,
    sketch: Sketch,
    a: CorrectionConfig,
    b: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientComparison:
    """Bias, noise, error and direction of both, and by how much they differ. Raises as `report` does."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    parts_a, parts_b = contributions(batch, sketch, [a, b], loss)
    of_a, of_b = samples_of(parts_a, replicas), samples_of(parts_b, replicas)
    unit = replicas.reference_length[0]
    more = {name: of_b[name] - of_a[name] for name in ("relative_bias", "error", "cosine")}
    more["noise"] = (of_b["variance"].sqrt() - of_a["variance"].sqrt()) / unit
    g_a, g_b = (mean_gradients(parts, replicas.sequences) for parts in (parts_a, parts_b))
    inner, sizes = (g_a * g_b).sum(-1), g_a.norm(dim=-1) * g_b.norm(dim=-1)
    expected = inner - noises(inner) * covariance(parts_a, parts_b)
    gained = (of_a["error"] - of_b["error"])[1:].sign()
    return GradientComparison(
        a=report_of(of_a, sketch),
        b=report_of(of_b, sketch),
        bias=interval_of(more["relative_bias"], signed=True),
        noise=interval_of(more["noise"], signed=True),
        error=interval_of(more["error"], signed=True),
        cosine=interval_of(more["cosine"], signed=True),
        between=interval_of(cosine(inner, sizes), signed=True),
        expected=interval_of(cosine(expected, of_a["length"] * of_b["length"]), signed=True),
        b_is_better=float((0.5 + gained / 2).mean()),
    )
