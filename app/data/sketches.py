"""Gradients of recorded steps, cached by the state of their files. Callers must not change what they get."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from data import corrections, recorded, uploads
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.bounds import BoundId, at_threshold, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import REPLICATES, BootstrapSamples, bootstrap
from rlcorr.gradients.comparison import GradientComparison, compare_gradients
from rlcorr.gradients.contributions import (
    BaseContributions,
    Contributions,
    base_contributions,
    base_correction,
    contributions,
)
from rlcorr.gradients.decomposition import Decomposition, decomposition, stages
from rlcorr.gradients.kl_losses import KLGradientReport, Target, kl_report
from rlcorr.gradients.report import GradientReport, Ranking, compare, report_of, samples_of
from rlcorr.gradients.sketch import ExactSketch, NextTokens, Sketch
from rlcorr.gradients.sweep import GradientSweep, ToySweep, gradient_sweep, spread_of, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.presets import RANKED, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_gradients

POINTS = 40
KL_LOSSES = ("k1", "abs", "k2", "k3", "k1+", "k3+")
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
    gap: float
    """The size of the recorded log-ratios; the toy uses the same."""


def sketched(run: Path, step: int) -> Sketched:
    """Return the step with its sketch.

    Raises `UsageError` if there is none or if it is damaged. An upload is named as its file there.
    """
    identity = corrections.identity(run, step), recorded.stamp(runs.sketch_path(run, step))
    try:
        batch, sketch = _batch_and_sketch(run, step, identity)
    except UsageError as error:
        raise UsageError(str(error).replace(run.name, uploads.shown_name(run.name))) from error
    return Sketched(identity, batch, sketch, _gap(identity, recorded.step(run, step).batch))


def reported(measured: Sketched, config: CorrectionConfig) -> GradientReport:
    """Return what `rlcorr.gradients.report` returns, from cached parts.

    Raises `UsageError` for a loss that has no gradient per token.
    """
    return report_of(samples_of(_contribution(measured, config), _samples(measured.identity, measured), BATCH_SIZES))


def measured_at(
    measured: Sketched, config: CorrectionConfig, bound: BoundId, thresholds: tuple[float, ...]
) -> list[tuple[GradientReport, Decomposition]]:
    """Return `reported` and `decomposed` at each threshold of this bound, whatever its present value."""
    config_key = corrections.key_without_bound(config, bound)
    return _measured_at(measured.identity, config_key, thresholds, measured, config, bound)


def decomposed(measured: Sketched, config: CorrectionConfig) -> Decomposition:
    """Return the parts of the bias. The first two stages do not depend on a bound, so they are cached."""
    parts = [_contribution(measured, stage) for stage in stages(config)]
    return decomposition(parts, _samples(measured.identity, measured))


def compared(measured: Sketched, a: CorrectionConfig, b: CorrectionConfig, batch_size: int) -> GradientComparison:
    return compare_gradients(measured.batch, measured.sketch, a, b, batch_sizes=[batch_size])


def _contribution(measured: Sketched, config: CorrectionConfig) -> Contributions:
    return _contributed(measured.identity, repr(config), measured, config)


def swept(measured: Sketched, config: CorrectionConfig, bound: BoundId) -> GradientSweep:
    """Sweep a bound. Its present value does not change the curve. Raises `UsageError` if every ratio is 1."""
    return _swept(measured.identity, corrections.key_without_bound(config, bound), measured, config, bound)


def moving_range(measured: Sketched, config: CorrectionConfig, bound: BoundId) -> tuple[float, float]:
    """Return the range in which moving this bound changes something. Raises `UsageError` if every ratio is 1."""
    thresholds = _thresholds(measured.identity, corrections.key_without_bound(config, bound), measured, config, bound)
    return min(thresholds), max(thresholds)


def all_presets(measured: Sketched) -> Ranking:
    """Rank all presets without score centering; the reports are in the order of `RANKED`."""
    return _all_presets(measured.identity, measured)


def kl_losses(measured: Sketched, next_tokens: NextTokens, target: Target) -> dict[str, KLGradientReport]:
    return _kl_losses(measured.identity, target, next_tokens)


def toy(gap: float, size: int, config: CorrectionConfig, thresholds: list[float], bound: BoundId) -> ToySweep:
    return _toy(gap, size, corrections.key_without_bound(config, bound), tuple(thresholds), config, bound)


@st.cache_resource(max_entries=8, show_spinner=False)
def _batch_and_sketch(run: Path, step: int, identity: Identity) -> tuple[TokenBatch, Sketch]:
    return read_gradients(run, step)


@st.cache_resource(max_entries=128, show_spinner=False)
def _contributed(identity: Identity, config_key: str, _measured: Sketched, _config: CorrectionConfig) -> Contributions:
    return _contributions(_measured, _config)


def _contributions(measured: Sketched, config: CorrectionConfig) -> Contributions:
    # Only sampled answers have sums of their own to start from. In an exact sketch prompts share the scores of a tree.
    sampled = not isinstance(measured.sketch, ExactSketch)
    base = _base(measured.identity, repr(base_correction(config)), measured, config) if sampled else None
    (contribution,) = contributions(measured.batch, measured.sketch, [config], base=base)
    return contribution


@st.cache_resource(max_entries=16, show_spinner=False)
def _measured_at(
    identity: Identity, config_key: str, thresholds: tuple[float, ...], _measured: Sketched, _config: CorrectionConfig,
    _bound: BoundId,
) -> list[tuple[GradientReport, Decomposition]]:  # fmt: skip
    samples, parts, reports = _samples(_measured.identity, _measured), {}, []
    for threshold in thresholds:
        of_threshold = stages(at_threshold(_config, threshold, _bound))
        # Keep this threshold's stages only: most are the same at the next one, and all together are too large.
        parts = {stage: parts.get(stage) or _contributions(_measured, stage) for stage in of_threshold}
        in_order = [parts[stage] for stage in of_threshold]
        reports.append((report_of(samples_of(in_order[-1], samples, BATCH_SIZES)), decomposition(in_order, samples)))
    return reports


@st.cache_resource(max_entries=8, show_spinner=False)
def _base(
    identity: Identity, config_key: str, _measured: Sketched, _config: CorrectionConfig
) -> BaseContributions | None:
    return base_contributions(_measured.batch, _measured.sketch, _config)


@st.cache_resource(max_entries=8, show_spinner=False)
def _samples(identity: Identity, _measured: Sketched) -> BootstrapSamples:
    return bootstrap(_measured.batch, _measured.sketch, LossConfig(), REPLICATES, seed=0)


@st.cache_resource(max_entries=64, show_spinner="Measuring the gradient at every threshold …")
def _swept(
    identity: Identity, config_key: str, _measured: Sketched, _config: CorrectionConfig, _bound: BoundId
) -> GradientSweep:
    batch, sketch = _measured.batch, _measured.sketch
    points = _thresholds(identity, config_key, _measured, _config, _bound)
    return gradient_sweep(batch, sketch, _config, _bound, thresholds=points, batch_sizes=BATCH_SIZES)


@st.cache_resource(max_entries=64, show_spinner=False)
def _thresholds(
    identity: Identity, config_key: str, _measured: Sketched, _config: CorrectionConfig, _bound: BoundId
) -> list[float]:
    return usual_thresholds(_measured.batch, _config, _bound, count=POINTS)


@st.cache_resource(max_entries=16, show_spinner="Measuring the gradient of every preset …")
def _all_presets(identity: Identity, _measured: Sketched) -> Ranking:
    presets = [preset(name) for name in RANKED]
    return compare(_measured.batch, _measured.sketch, presets, batch_sizes=BATCH_SIZES)


@st.cache_resource(max_entries=32, show_spinner=False)
def _kl_losses(identity: Identity, target: Target, _next_tokens: NextTokens) -> dict[str, KLGradientReport]:
    return {name: kl_report(_next_tokens, name, target) for name in KL_LOSSES}


@st.cache_resource(max_entries=64, show_spinner=False)
def _gap(identity: Identity, _batch: TokenBatch) -> float:
    return spread_of(_batch)


@st.cache_resource(max_entries=64, show_spinner="Enumerating the toy …")
def _toy(
    gap: float,
    size: int,
    config_key: str,
    thresholds: tuple[float, ...],
    _config: CorrectionConfig,
    _bound: BoundId,
) -> ToySweep:
    return toy_sweep(small_world(gap), _config, thresholds, size, _bound)
