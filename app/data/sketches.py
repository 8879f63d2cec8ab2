"""Gradients of recorded steps, cached by the state of their files. Callers must not change what they get."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from data import corrections, recorded, uploads
from data.caching import cached
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.bounds import BoundId, at_threshold, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients import contributions, report
from rlcorr.gradients.bootstrap import REPLICATES, BootstrapSamples, bootstrap
from rlcorr.gradients.kl_losses import KLGradientReport, Positions, Target, kl_gradients, kl_report
from rlcorr.gradients.sketch import SampledSketch, Sketch
from rlcorr.gradients.sweep import GradientSweep, gradient_sweep
from rlcorr.presets import RANKED, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_gradients

BATCH_SIZES = tuple(2**power for power in range(4, 17))
"""Answers in a batch. Everything is measured for all sizes at once, which costs little more than for one."""
Identity = tuple[corrections.Identity, recorded.Stamp]


@dataclass(frozen=True)
class Sketched:
    """A step with a sketch of its gradients."""

    identity: Identity
    """The key for caches: the step, and the state of the sketch's file."""
    batch: TokenBatch
    sketch: Sketch


def _identity(run: Path, step: int) -> Identity:
    return corrections.identity(run, step), recorded.stamp(runs.sketch_path(run, step))


def _over_bound(measured: Sketched, config: CorrectionConfig, bound: BoundId, *more: Any) -> Any:
    return measured.identity, corrections.key_without_bound(config, bound), more


@cached(8, _identity)
def sketched(run: Path, step: int) -> Sketched:
    """Return the step with its sketch.

    Raises `UsageError` if there is none, as for every upload, or if it is damaged.
    """
    if run.name.startswith(uploads.PREFIX):
        raise UsageError(
            f"{uploads.shown_name(run.name)} has log-probs, and log-probs alone do not give one a gradient. What a "
            "threshold costs your tokens is on the bench. What it does to a gradient step is shown for a recorded run "
            "with a gap like yours."
        )
    batch, sketch = read_gradients(run, step)
    return Sketched(_identity(run, step), batch, sketch)


def reported(measured: Sketched, config: CorrectionConfig) -> report.GradientReport:
    """Return what `rlcorr.gradients.report` returns, from cached parts.

    Raises `UsageError` for a loss that has no gradient per token.
    """
    return report.report_of(report.samples_of(_contribution(measured, config), _samples(measured), BATCH_SIZES))


@cached(16, _over_bound)
def measured_at(
    measured: Sketched, config: CorrectionConfig, bound: BoundId, thresholds: tuple[float, ...]
) -> list[report.GradientReport]:
    """Return `reported` at each threshold of this bound, whatever its present value."""
    samples, reports = _samples(measured), []
    for threshold in thresholds:
        whole = _contribution_anew(measured, at_threshold(config, threshold, bound))
        reports.append(report.report_of(report.samples_of(whole, samples, BATCH_SIZES)))
    return reports


def compared(
    measured: Sketched, a: CorrectionConfig, b: CorrectionConfig, batch_size: int
) -> report.GradientComparison:
    return report.compare_gradients(measured.batch, measured.sketch, a, b, batch_sizes=[batch_size])


@cached(64, _over_bound, "Measuring the gradient at every threshold …")
def swept(measured: Sketched, config: CorrectionConfig, bound: BoundId) -> GradientSweep:
    """Sweep a bound. Its present value does not change the curve. Raises `UsageError` if every ratio is 1."""
    points = thresholds(measured, config, bound)
    return gradient_sweep(measured.batch, measured.sketch, config, bound, thresholds=points, batch_sizes=BATCH_SIZES)


@cached(16, lambda measured: measured.identity, "Measuring the gradient of every preset …")
def all_presets(measured: Sketched) -> report.Ranking:
    """Rank all presets without score centering; the reports are in the order of `RANKED`."""
    return report.compare(measured.batch, measured.sketch, [preset(name) for name in RANKED], batch_sizes=BATCH_SIZES)


def _positions(measured: Sketched) -> Positions:
    """Return the positions with all next tokens. Raises `UsageError` if the step has none."""
    sketch = measured.sketch
    positions = sketch.next_tokens or (sketch.kl_gradients if isinstance(sketch, SampledSketch) else None)
    if positions is None:
        raise UsageError("this step has no positions at which all next tokens were recorded.")
    return positions


def _of_loss(measured: Sketched, loss: str, target: Target) -> Any:
    return measured.identity, loss, target


@cached(32, _of_loss)
def kl_loss(measured: Sketched, loss: str, target: Target) -> KLGradientReport:
    return kl_report(_positions(measured), loss, target)


@cached(32, _of_loss)
def kl_arrows(measured: Sketched, loss: str, target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `kl_gradients` returns. Raises `UsageError` if the step lacks the target."""
    return kl_gradients(_positions(measured), loss, target)


def _contribution_anew(measured: Sketched, config: CorrectionConfig) -> contributions.Contributions:
    (contribution,) = contributions.contributions(measured.batch, measured.sketch, [config])
    return contribution


_contribution = cached(32, lambda measured, config: (measured.identity, repr(config)))(_contribution_anew)


@cached(8, lambda measured: measured.identity)
def _samples(measured: Sketched) -> BootstrapSamples:
    return bootstrap(measured.batch, measured.sketch, LossConfig(), REPLICATES, seed=0)


@cached(64, _over_bound)
def thresholds(measured: Sketched, config: CorrectionConfig, bound: BoundId) -> list[float]:
    """Return thresholds that change something, in order. Raises `UsageError` if every ratio is 1."""
    return usual_thresholds(measured.batch, config, bound, count=40)
