"""Corrections of recorded steps, cached by what the file system says. Callers must not change what they get."""

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import streamlit as st
from torch import Tensor
from words import words

from data.recorded import Stamp, stamp
from rlcorr import CorrectionConfig, CorrectionResult, TokenBatch, correct, measure, metrics
from rlcorr.analysis import budget
from rlcorr.analysis.sweep import Sweep, Swept
from rlcorr.analysis.thresholds import Side, at_threshold, is_ratio, swept, usual_thresholds
from rlcorr.diagnostics import Named, measure_pairs
from rlcorr.records import runs
from rlcorr.report import PREFIX

CURVE_POINTS = 200

NO_CORRECTION = CorrectionConfig()


def corrected(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, dict[str, float]]:
    """The correction, and its metrics without verl's prefix."""
    result = correct(batch, config)
    report = metrics(measure(batch, result, config, _pairs(batch)))
    return result, {key.removeprefix(PREFIX): value for key, value in report.items()}


@lru_cache(maxsize=16)
def _pairs(batch: TokenBatch) -> list[Named]:
    return measure_pairs(batch)


Identity = tuple[str, int, Stamp]
"""What a batch is known by: its run, its step, the state of its file."""


def identity(run: Path, number: int) -> Identity:
    return str(run), number, stamp(runs.step_path(run, number))


@dataclass(frozen=True)
class Curves:
    """The metrics of a correction over one of its bounds."""

    sweep: Sweep
    thresholds: list[float]
    found: Swept[Tensor]


def curves(of: Identity, batch: TokenBatch, config: CorrectionConfig, rule: int | None, side: Side) -> Curves:
    """Wherever that bound is now. Raises `UsageError` where no item is off."""
    return _curves(of, all_but(config, rule, side), side, batch, config, rule)


def affordable(
    of: Identity, batch: TokenBatch, config: CorrectionConfig, rule: int | None, kind: words.Budget, share: float
) -> float:
    """The threshold that a budget allows, wherever the bounds are now. Raises `UsageError` where none does."""
    return _affordable(of, all_but(config, rule, "band"), kind, share, batch, config, rule)


def all_but(config: CorrectionConfig, rule: int | None, side: Side) -> str:
    """A configuration but for one bound: the same text wherever the bound is."""
    sign = -1.0 if side == "lower" else 1.0
    anywhere = math.exp(sign) if is_ratio(config, swept(config, rule)) else sign
    return repr(at_threshold(config, anywhere, rule, side))


# cache_resource hands out the object itself: copying a step costs more than correcting it.


@st.cache_resource(max_entries=64, show_spinner=False)
def _curves(
    of: Identity, what: str, side: Side, _batch: TokenBatch, _config: CorrectionConfig, _rule: int | None
) -> Curves:
    thresholds = usual_thresholds(_batch, _config, _rule, side=side, count=CURVE_POINTS)
    sweep = budget.index(_batch, _config, _rule)
    return Curves(sweep, thresholds, budget.over(sweep, _config, thresholds, _rule, side))


@st.cache_resource(max_entries=256, show_spinner=False)
def _affordable(
    of: Identity,
    what: str,
    kind: words.Budget,
    share: float,
    _batch: TokenBatch,
    _config: CorrectionConfig,
    _rule: int | None,
) -> float:
    solve = budget.keep_at_least if kind == "keep" else budget.ess_at_least
    return solve(_batch, _config, share, _rule)
