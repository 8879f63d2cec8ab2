"""Corrections of recorded steps, cached by the state of their files. Callers must not change what they get."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data.caching import cached
from data.recorded import Stamp, stamp
from rlcorr import CorrectionConfig, CorrectionResult, TokenBatch, evaluate
from rlcorr.analysis import budget
from rlcorr.analysis.bound_curve import BoundCurve, bound_curve
from rlcorr.analysis.segments import turns_as_rows
from rlcorr.bounds import BoundId, at_threshold, is_ratio, useful_range, usual_thresholds
from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs

NO_CORRECTION = CorrectionConfig()

ROUNDING = 1e-6
"""Rounding error of a share that is summed in float32."""

Budget = Literal["keep", "ess"]
"""The two kinds of budgets: for the share of kept tokens, and for their effective sample size."""


def corrected(batch: TokenBatch, config: CorrectionConfig) -> tuple[CorrectionResult, dict[str, float]]:
    """Return the correction, and its metrics without verl's prefix."""
    result, numbers = evaluate(batch, config)
    return result, {key.removeprefix(PREFIX): value for key, value in numbers.items()}


Identity = tuple[str, int, Stamp]
"""The run, the step and the state of the file of a batch, for the keys of caches."""


def identity(run: Path, number: int) -> Identity:
    return str(run), number, stamp(runs.step_path(run, number))


@cached(8, lambda identity, batch: identity)
def per_turn(identity: Identity, batch: TokenBatch) -> tuple[Identity, TokenBatch]:
    """Return a batch with one row per turn, and its own identity. Raises `UsageError` without turn_ids."""
    run, number, state = identity
    return (f"{run}, turns", number, state), turns_as_rows(batch)


def key_without_bound(config: CorrectionConfig, bound: BoundId) -> str:
    """Return the configuration as text, with a fixed value for this bound.

    It is a key for caches of results that do not depend on the bound's value.
    """
    sign = -1.0 if bound.side == "lower" else 1.0
    fixed = math.exp(sign) if is_ratio(config, bound) else sign
    return repr((at_threshold(config, fixed, bound), bound))


def _over_bound(identity: Identity, batch: TokenBatch, config: CorrectionConfig, bound: BoundId, *more: Any) -> Any:
    return identity, key_without_bound(config, bound), more


@cached(64, _over_bound)
def curve(identity: Identity, batch: TokenBatch, config: CorrectionConfig, bound: BoundId) -> BoundCurve:
    """Return the curve over a bound, whatever its present value. Raises `UsageError` if no item is off neutral."""
    return bound_curve(batch, config, usual_thresholds(batch, config, bound, count=200), bound)


@cached(256, _over_bound)
def useful_ends(identity: Identity, batch: TokenBatch, config: CorrectionConfig, bound: BoundId) -> tuple[float, ...]:
    """Return the two ends between which moving this bound changes something, or nothing if no item is off neutral."""
    try:
        return useful_range(batch, config, bound)
    except UsageError:
        return ()


@dataclass(frozen=True)
class Tried:
    """What one bound can do for a budget: its best threshold, and the shares that the whole correction then has."""

    bound: BoundId
    threshold: float = math.nan
    kept: float = math.nan
    """Share of the tokens that is kept."""
    ess: float = math.nan
    """Effective sample size of the kept tokens, as a share of all tokens."""
    is_enough: bool = False
    refusal: str = ""
    """Why the library has no threshold for it."""


def try_bounds(
    identity: Identity,
    batch: TokenBatch,
    config: CorrectionConfig,
    bounds: Iterable[BoundId],
    kind: Budget,
    share: float,
) -> list[Tried]:
    """Try each of these bounds in turn, until one alone meets the budget.

    The present value of a bound that is tried does not matter.
    """
    tried = []
    for bound in bounds:
        try:
            threshold = _affordable(identity, batch, config, bound, kind, share)
        except UsageError as error:
            tried.append(Tried(bound, refusal=str(error)))
            continue
        metrics_then = corrected(batch, at_threshold(config, threshold, bound))[1]
        kept, ess = metrics_then["kept_fraction"], metrics_then["trained_eff_sample_size"]
        tried.append(Tried(bound, threshold, kept, ess, (kept if kind == "keep" else ess) >= share - ROUNDING))
        if tried[-1].is_enough:
            break
    return tried


@cached(256, _over_bound)
def _affordable(
    identity: Identity, batch: TokenBatch, config: CorrectionConfig, bound: BoundId, kind: Budget, share: float
) -> float:
    solve = budget.keep_at_least if kind == "keep" else budget.ess_at_least
    return solve(batch, config, share, bound)
