"""What the gradient view shows, cached by what the file system says. Callers must not change what they get."""

from pathlib import Path

import streamlit as st

from data import corrections, recorded
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.thresholds import Side, usual_thresholds
from rlcorr.config import LossConfig
from rlcorr.gradients.bootstrap import REPLICATES, Replicas, bootstrap
from rlcorr.gradients.contributions import Contributions, Neighbour, contributions, loosened, neighbour_of
from rlcorr.gradients.kl_losses import KLGradientReport, Target, kl_report
from rlcorr.gradients.report import (
    Decomposition,
    GradientReport,
    Ranking,
    compare,
    decomposition,
    report_of,
    samples_of,
    stages,
)
from rlcorr.gradients.sketch import NextTokens, Sketch
from rlcorr.gradients.sweep import GradientSweep, ToySweep, gradient_sweep, spread_of, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.presets import PRESETS, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch, updated_batch

POINTS = 40
KL_LOSSES = ("k1", "abs", "k2", "k3", "k1+", "k3+")
Identity = tuple[corrections.Identity, recorded.Stamp]


def identity(run: Path, step: int) -> Identity:
    return corrections.identity(run, step), recorded.stamp(runs.sketch_path(run, step))


def sketch_and_batch(run: Path, step: int) -> tuple[Sketch, TokenBatch]:
    """Raises `UsageError` without a sketch and for a damaged one."""
    return _sketch_and_batch(run, step, identity(run, step))


def reported(of: Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig) -> GradientReport:
    """As `gradients.report`, from what is already known. Raises `UsageError` for what has no gradient per token."""
    parts = _contribution(of, batch, sketch, config)
    return report_of(samples_of(parts, _replicas(of, batch, sketch)), sketch)


def decomposed(of: Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig) -> Decomposition:
    """As `gradients.decompose`: the first two stages are the same wherever a bound is."""
    parts = [_contribution(of, batch, sketch, stage) for stage in stages(config)]
    return decomposition(parts, _replicas(of, batch, sketch))


def _contribution(of: Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig) -> Contributions:
    neighbour = _neighbour(of, repr(loosened(config)), batch, sketch, config)
    return _contributed(of, repr(config), batch, sketch, config, neighbour)


def swept(
    of: Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig, rule: int | None, side: Side
) -> GradientSweep:
    """Whatever the moved bound is now: it does not change the curve. Raises `UsageError` where no token is off."""
    return _swept(of, corrections.all_but(config, rule, side), side, batch, sketch, config, rule)


def all_presets(of: Identity, batch: TokenBatch, sketch: Sketch) -> Ranking:
    """In the order of `PRESETS`."""
    return _all_presets(of, batch, sketch)


def kl_losses(of: Identity, places: NextTokens, target: Target) -> dict[str, KLGradientReport]:
    return _kl_losses(of, target, places)


def gap(of: Identity, batch: TokenBatch) -> float:
    """The size of this step's log-ratios, which the toy takes over."""
    return _gap(of, batch)


def toy(
    gap: float, size: int, config: CorrectionConfig, thresholds: list[float], rule: int | None, side: Side
) -> ToySweep:
    return _toy(gap, size, corrections.all_but(config, rule, side), side, tuple(thresholds), config, rule)


@st.cache_resource(max_entries=8, show_spinner=False)
def _sketch_and_batch(run: Path, step: int, of: Identity) -> tuple[Sketch, TokenBatch]:
    return read_sketch(run, step), updated_batch(run, step)


@st.cache_resource(max_entries=128, show_spinner=False)
def _contributed(
    of: Identity,
    what: str,
    _batch: TokenBatch,
    _sketch: Sketch,
    _config: CorrectionConfig,
    _neighbour: Neighbour | None,
) -> Contributions:
    (contribution,) = contributions(_batch, _sketch, [_config], neighbour=_neighbour)
    return contribution


@st.cache_resource(max_entries=8, show_spinner=False)
def _neighbour(
    of: Identity, what: str, _batch: TokenBatch, _sketch: Sketch, _config: CorrectionConfig
) -> Neighbour | None:
    return neighbour_of(_batch, _sketch, _config)


@st.cache_resource(max_entries=8, show_spinner=False)
def _replicas(of: Identity, _batch: TokenBatch, _sketch: Sketch) -> Replicas:
    return bootstrap(_batch, _sketch, LossConfig(), REPLICATES, seed=0)


@st.cache_resource(max_entries=64, show_spinner="Measuring the gradient at every threshold …")
def _swept(
    of: Identity,
    what: str,
    side: Side,
    _batch: TokenBatch,
    _sketch: Sketch,
    _config: CorrectionConfig,
    _rule: int | None,
) -> GradientSweep:
    thresholds = usual_thresholds(_batch, _config, _rule, side=side, count=POINTS)
    return gradient_sweep(_batch, _sketch, _config, rule=_rule, side=side, thresholds=thresholds)


@st.cache_resource(max_entries=16, show_spinner="Measuring the gradient of every preset …")
def _all_presets(of: Identity, _batch: TokenBatch, _sketch: Sketch) -> Ranking:
    return compare(_batch, _sketch, [preset(name) for name in PRESETS])


@st.cache_resource(max_entries=32, show_spinner=False)
def _kl_losses(of: Identity, target: Target, _places: NextTokens) -> dict[str, KLGradientReport]:
    return {name: kl_report(_places, name, target) for name in KL_LOSSES}


@st.cache_resource(max_entries=64, show_spinner=False)
def _gap(of: Identity, _batch: TokenBatch) -> float:
    return spread_of(_batch)


@st.cache_resource(max_entries=64, show_spinner=False)
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
