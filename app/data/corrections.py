"""Corrections of recorded steps, cached by what the file system says. Callers must not change what they get."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import streamlit as st
from text import phrases
from text.formatting import percent
from text.phrases import Budget
from torch import Tensor

from data.recorded import Stamp, stamp
from rlcorr import CorrectionConfig, CorrectionResult, TokenBatch, correct, measure, metrics
from rlcorr.analysis import budget
from rlcorr.analysis.sweep import BoundMetrics
from rlcorr.bounds import Side, at_threshold, is_ratio, moved_rule, useful_range, usual_thresholds
from rlcorr.errors import UsageError
from rlcorr.measuring.measure import measure_pairs
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.measuring.sequence_moments import Named
from rlcorr.records import runs
from rlcorr.strips.strip import numbers_over

CURVE_POINTS = 200

NO_CORRECTION = CorrectionConfig()

ROUNDING = 1e-6
"""Of a share that is summed in float32."""


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
    """Over one bound of a correction: the headline numbers of all of it, and the metrics of what the bound itself
    keeps or cuts."""

    thresholds: list[float]
    numbers: dict[str, Tensor]
    metrics: BoundMetrics[Tensor]


def curves(of: Identity, batch: TokenBatch, config: CorrectionConfig, rule: int | None, side: Side) -> Curves:
    """Wherever that bound is now. Raises `UsageError` where no item is off."""
    return _curves(of, all_but(config, rule, side), side, batch, config, rule)


@dataclass(frozen=True)
class Affordable:
    """Bounds within a budget: of the weights, or of the rule with this index; and what the whole correction then
    keeps of the tokens and of their effective sample size."""

    rule: int | None
    threshold: float
    kept: float
    ess: float


def affordable(
    of: Identity, batch: TokenBatch, config: CorrectionConfig, parts: Iterable[int | None], kind: Budget, share: float
) -> Affordable:
    """The first of these parts, None for the weights, whose bounds alone bring the whole correction within the budget,
    wherever they are now. Raises `UsageError` with what each of them reaches where none does."""
    reasons = [phrases.BUDGET_NONE.format(share=percent(share))]
    for rule in parts:
        try:
            threshold = _affordable(of, all_but(config, rule, "band"), kind, share, batch, config, rule)
        except UsageError as error:
            reasons.append(f"{phrases.budget_part(config, rule)}: {error}")
            continue
        metrics_then = corrected(batch, at_threshold(config, threshold, rule))[1]
        kept, ess = metrics_then["kept_fraction"], metrics_then["trained_eff_sample_size"]
        reached = kept if kind == "keep" else ess
        if reached >= share - ROUNDING:
            return Affordable(rule, threshold, kept, ess)
        part = phrases.budget_part(config, rule)
        reasons.append(phrases.BUDGET_MISSED.format(part=part, threshold=threshold, reached=percent(reached)))
    raise UsageError(" ".join(reasons))


def useful_ends(
    of: Identity, batch: TokenBatch, config: CorrectionConfig, rule: int | None, side: Side
) -> tuple[float, ...]:
    """Return the two ends between which moving this bound changes something, or nothing if no item is off neutral."""
    return _useful_ends(of, all_but(config, rule, side), side, batch, config, rule)


def all_but(config: CorrectionConfig, rule: int | None, side: Side) -> str:
    """A configuration as text, with this bound put at a fixed place: a key for caches of what does not depend on it."""
    sign = -1.0 if side == "lower" else 1.0
    anywhere = math.exp(sign) if is_ratio(config, moved_rule(config, rule)) else sign
    return repr(at_threshold(config, anywhere, rule, side))


# cache_resource hands out the object itself: copying a step costs more than correcting it.


@st.cache_resource(max_entries=64, show_spinner=False)
def _curves(
    of: Identity, what: str, side: Side, _batch: TokenBatch, _config: CorrectionConfig, _rule: int | None
) -> Curves:
    thresholds = usual_thresholds(_batch, _config, _rule, side=side, count=CURVE_POINTS)
    metrics = budget.curve_of(budget.sweep_of(_batch, _config, _rule), _config, thresholds, _rule, side)
    return Curves(thresholds, numbers_over(_batch, _config, thresholds, rule=_rule, side=side), metrics)


@st.cache_resource(max_entries=256, show_spinner=False)
def _useful_ends(
    of: Identity, what: str, side: Side, _batch: TokenBatch, _config: CorrectionConfig, _rule: int | None
) -> tuple[float, ...]:
    try:
        return useful_range(_batch, _config, _rule, side=side)
    except UsageError:
        return ()


@st.cache_resource(max_entries=256, show_spinner=False)
def _affordable(
    of: Identity,
    what: str,
    kind: Budget,
    share: float,
    _batch: TokenBatch,
    _config: CorrectionConfig,
    _rule: int | None,
) -> float:
    solve = budget.keep_at_least if kind == "keep" else budget.ess_at_least
    return solve(_batch, _config, share, _rule)
