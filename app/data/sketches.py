"""What the gradient view shows, cached by what the file system says. Callers must not change what they get."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from data import corrections, recorded
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.bounds import Side, at_threshold, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.gradients.bootstrap import REPLICATES, Replicas, bootstrap
from rlcorr.gradients.comparison import GradientComparison, compare_gradients
from rlcorr.gradients.contributions import Contributions, Neighbour, contributions, loosened, neighbour_of
from rlcorr.gradients.decomposition import Decomposition, decomposition, stages
from rlcorr.gradients.kl_losses import KLGradientReport, Target, kl_report
from rlcorr.gradients.report import GradientReport, Ranking, compare, report_of, samples_of
from rlcorr.gradients.sketch import ExactSketch, NextTokens, Sketch
from rlcorr.gradients.sweep import GradientSweep, ToySweep, gradient_sweep, spread_of, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_gradients

POINTS = 40
KL_LOSSES = ("k1", "abs", "k2", "k3", "k1+", "k3+")
BATCH_SIZES = tuple(2**power for power in range(4, 17))
"""Answers in a batch. Everything is measured for all of them at once, which costs little more than for one."""
Identity = tuple[corrections.Identity, recorded.Stamp]


@dataclass(frozen=True)
class Sketched:
    """A step whose gradients are known: what they are measured on, and what that is known by."""

    of: Identity
    batch: TokenBatch
    sketch: Sketch
    gap: float
    """The size of the log-ratios that were recorded, which the toy takes over."""


def sketched(run: Path, step: int) -> Sketched:
    """Raises `UsageError` without a sketch and for a damaged one."""
    of = corrections.identity(run, step), recorded.stamp(runs.sketch_path(run, step))
    return Sketched(of, *_batch_and_sketch(run, step, of), _gap(of, recorded.step(run, step).batch))


def reported(measured: Sketched, config: CorrectionConfig) -> GradientReport:
    """As `report`, from what is already known. Raises `UsageError` for what has no gradient per token."""
    return report_of(samples_of(_contribution(measured, config), _replicas(measured.of, measured), BATCH_SIZES))


def measured_at(
    measured: Sketched, config: CorrectionConfig, rule: int | None, side: Side, thresholds: tuple[float, ...]
) -> list[tuple[GradientReport, Decomposition]]:
    """`reported` and `decomposed` with this bound at each threshold, wherever it is now."""
    what = corrections.all_but(config, rule, side)
    return _measured_at(measured.of, what, side, thresholds, measured, config, rule)


def decomposed(measured: Sketched, config: CorrectionConfig) -> Decomposition:
    """As `decompose`: the first two stages are the same wherever a bound is."""
    parts = [_contribution(measured, stage) for stage in stages(config)]
    return decomposition(parts, _replicas(measured.of, measured))


def compared(measured: Sketched, a: CorrectionConfig, b: CorrectionConfig, batch_size: int) -> GradientComparison:
    return compare_gradients(measured.batch, measured.sketch, a, b, batch_sizes=[batch_size])


def _contribution(measured: Sketched, config: CorrectionConfig) -> Contributions:
    return _contributed(measured.of, repr(config), measured, config)


def swept(measured: Sketched, config: CorrectionConfig, rule: int | None, side: Side) -> GradientSweep:
    """Whatever the moved bound is now: it does not change the curve. Raises `UsageError` where no token is off."""
    return _swept(measured.of, corrections.all_but(config, rule, side), side, measured, config, rule)


def moving_range(measured: Sketched, config: CorrectionConfig, rule: int | None, side: Side) -> tuple[float, float]:
    """The least and the greatest bound between which something happens. Raises `UsageError` where no token is off."""
    thresholds = _thresholds(measured.of, corrections.all_but(config, rule, side), side, measured, config, rule)
    return min(thresholds), max(thresholds)


def all_presets(measured: Sketched) -> Ranking:
    """In the order of `PRESETS`."""
    return _all_presets(measured.of, measured)


def kl_losses(measured: Sketched, places: NextTokens, target: Target) -> dict[str, KLGradientReport]:
    return _kl_losses(measured.of, target, places)


def toy(
    gap: float, size: int, config: CorrectionConfig, thresholds: list[float], rule: int | None, side: Side
) -> ToySweep:
    return _toy(gap, size, corrections.all_but(config, rule, side), side, tuple(thresholds), config, rule)


@st.cache_resource(max_entries=8, show_spinner=False)
def _batch_and_sketch(run: Path, step: int, of: Identity) -> tuple[TokenBatch, Sketch]:
    return read_gradients(run, step)


@st.cache_resource(max_entries=128, show_spinner=False)
def _contributed(of: Identity, what: str, _measured: Sketched, _config: CorrectionConfig) -> Contributions:
    return _contributions(_measured, _config)


def _contributions(measured: Sketched, config: CorrectionConfig) -> Contributions:
    # Prompts share the scores of their tree, and no answer has sums of its own to start from.
    sampled = not isinstance(measured.sketch, ExactSketch)
    neighbour = _neighbour(measured.of, repr(loosened(config)), measured, config) if sampled else None
    (contribution,) = contributions(measured.batch, measured.sketch, [config], neighbour=neighbour)
    return contribution


@st.cache_resource(max_entries=16, show_spinner=False)
def _measured_at(
    of: Identity, what: str, side: Side, thresholds: tuple[float, ...], _measured: Sketched, _config: CorrectionConfig,
    _rule: int | None,
) -> list[tuple[GradientReport, Decomposition]]:  # fmt: skip
    replicas, parts, reports = _replicas(_measured.of, _measured), {}, []
    for threshold in thresholds:
        of_place = stages(at_threshold(_config, threshold, _rule, side))
        # From one threshold to the next most stages stay. All of them, of all thresholds, would be too large to keep.
        parts = {stage: parts.get(stage) or _contributions(_measured, stage) for stage in of_place}
        in_order = [parts[stage] for stage in of_place]
        reports.append((report_of(samples_of(in_order[-1], replicas, BATCH_SIZES)), decomposition(in_order, replicas)))
    return reports


@st.cache_resource(max_entries=8, show_spinner=False)
def _neighbour(of: Identity, what: str, _measured: Sketched, _config: CorrectionConfig) -> Neighbour | None:
    return neighbour_of(_measured.batch, _measured.sketch, _config)


@st.cache_resource(max_entries=8, show_spinner=False)
def _replicas(of: Identity, _measured: Sketched) -> Replicas:
    return bootstrap(_measured.batch, _measured.sketch, LossConfig(), REPLICATES, seed=0)


@st.cache_resource(max_entries=64, show_spinner="Measuring the gradient at every threshold …")
def _swept(
    of: Identity, what: str, side: Side, _measured: Sketched, _config: CorrectionConfig, _rule: int | None
) -> GradientSweep:
    batch, sketch = _measured.batch, _measured.sketch
    points = _thresholds(of, what, side, _measured, _config, _rule)
    return gradient_sweep(batch, sketch, _config, rule=_rule, side=side, thresholds=points, batch_sizes=BATCH_SIZES)


@st.cache_resource(max_entries=64, show_spinner=False)
def _thresholds(
    of: Identity, what: str, side: Side, _measured: Sketched, _config: CorrectionConfig, _rule: int | None
) -> list[float]:
    return usual_thresholds(_measured.batch, _config, _rule, side=side, count=POINTS)


@st.cache_resource(max_entries=16, show_spinner="Measuring the gradient of every preset …")
def _all_presets(of: Identity, _measured: Sketched) -> Ranking:
    presets = [preset(name) for name in PRESETS]
    return compare(_measured.batch, _measured.sketch, presets, batch_sizes=BATCH_SIZES)


@st.cache_resource(max_entries=32, show_spinner=False)
def _kl_losses(of: Identity, target: Target, _places: NextTokens) -> dict[str, KLGradientReport]:
    return {name: kl_report(_places, name, target) for name in KL_LOSSES}


@st.cache_resource(max_entries=64, show_spinner=False)
def _gap(of: Identity, _batch: TokenBatch) -> float:
    return spread_of(_batch)


@st.cache_resource(max_entries=64, show_spinner="Enumerating the toy …")
def _toy(
    gap: float,
    size: int,
    what: str,
    side: Side,
    thresholds: tuple[float, ...],
    _config: CorrectionConfig,
    _rule: int | None,
) -> ToySweep:
    return toy_sweep(small_world(gap), _config, thresholds, size, rule=_rule, side=side)
