"""Studies, and the one that fits the mismatch of a run, cached by the state of their files.

Callers must not change what they get.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from data import recorded
from data.caching import cached
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import study, study_comparisons, study_ends
from rlcorr.records.runs import DamagedFile
from rlcorr.records.study import Outcome
from rlcorr.records.study_ends import NOTHING, StudyEnds

OLD, CACHE = "old weights", "8-bit cache"
SMALL, LONG, REAL = "small model", "small model, long answers", "SmolLM2"
STUDIES = {
    (OLD, SMALL): ("smol_last_weights", "stale_8", "decide_stale"),
    (OLD, REAL): ("smol_last_weights", "stale_8", "decide_stale"),
    (OLD, LONG): ("decide_long_stale", "smol_last_weights", "stale_8", "decide_stale"),
    (CACHE, SMALL): ("kv_fp8_e5m2", "decide_cache"),
    (CACHE, REAL): ("smol_e5m2", "kv_fp8_e5m2", "decide_cache"),
    (CACHE, LONG): ("decide_long_cache", "kv_fp8_e5m2", "decide_cache"),
}
"""Mismatch and model of a run → studies of such a mismatch, those that fit best first."""

CONTROLS = {"stale_8": "stale_0", "decide_stale": "stale_0", "decide_cache": "stale_0", "kv_fp8_e5m2": "kv_bf16"}
"""Study → the study of the same task, options and learning rate without the mismatch."""


@dataclass(frozen=True)
class StudyTable:
    """A study: its rows, facts about how they were made, its source in one line, and the outcome of each preset."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    source: str
    outcomes: list[Outcome]
    against_nothing: list[study_comparisons.Comparison]
    against_chance: list[study_comparisons.Comparison]
    endpoint: dict[str, Interval]
    """Arm → the endpoint that was planned, with the control as many steps later as the other arms; empty without a
    plan."""
    planned: list[study_comparisons.Comparison]
    """The comparisons of this endpoint that were planned, and those with no correction that were not."""


@cached(8, lambda: (study.FOLDER, recorded.stamp(study.FOLDER / "index.toml")))
def all_studies() -> dict[str, study.Study]:
    """Return name → study; empty without an index."""
    return study.finished_studies() if (study.FOLDER / "index.toml").is_file() else {}


def _state(name: str) -> tuple[Path, recorded.Stamp]:
    path = study.study_path(name)
    return path, recorded.stamp(path)


@cached(16, _state)
def table(name: str) -> StudyTable:
    """Return the rows and outcomes of a study.

    Raises `UsageError` if the study has not been trained, and `DamagedFile` if its file cannot be read.
    """
    rows, facts = study.read_study(name)
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    source = f"study {name} · seeds {seeds} · {recorded.digest(study.study_path(name))}"
    entry, endpoint, planned = study.find_study(name), {}, []
    if plan := entry.endpoint:
        # The rewards of the control are compared later, but not its last weights, which are as old as the others'.
        later = study.delayed_control(entry, rows) if plan.steps else []
        endpoint = study_comparisons.endpoint_means([*rows, *later], plan)
        named = {frozenset(pair) for pair in plan.primary}
        planned = [
            pair
            for pair in study_comparisons.compare_endpoints(rows, plan)
            if (pair.arm, pair.against) in plan.primary
            or (pair.against in study_comparisons.NO_CORRECTION and {pair.arm, pair.against} not in named)
        ]
    return StudyTable(
        rows, facts, source, study.outcomes(rows), study_comparisons.against_nothing(rows),
        study_comparisons.against_chance(rows, entry.by_chance),
        endpoint, planned,
    )  # fmt: skip


def few(result: StudyTable) -> list[str]:
    """Return the presets to draw first: the best, the last, no correction, and one that is proven to differ from it."""
    order = [outcome.preset for outcome in result.outcomes]
    proven = [pair.arm for pair in result.against_nothing if pair.difference.tells]
    shown = {*order[:3], order[-1], *study_comparisons.NO_CORRECTION, *proven[:1]}
    return [arm for arm in order if arm in shown]


def reward_levels(name: str, result: StudyTable) -> dict[str, float]:
    """Return the rewards to compare with: of the first step, and of the end without the mismatch if it was trained."""
    # No correction has changed anything at the first step yet.
    levels = {"start": fmean(row["reward"] for row in result.rows if row["step"] == 1)}
    fresh = [one.reward.mean for one in result.outcomes if one.preset.startswith(study_ends.FRESH)]
    if not fresh and name in CONTROLS and study.study_path(CONTROLS[name]).is_file():
        control = table(CONTROLS[name]).outcomes
        fresh = [one.reward.mean for one in control if one.preset in study_comparisons.NO_CORRECTION]
    return levels | {"no mismatch": fresh[0]} if fresh else levels


def ends(run: Path, *kinds: str) -> StudyEnds | None:
    """Return the end of the first study of the run's mismatch that has all these kinds of corrections."""
    return next((ended for ended in _ends_of(run) if {NOTHING, *kinds} <= ended.by_kind.keys()), None)


def widest_ends(run: Path) -> StudyEnds | None:
    """Return the end of the study of the run's mismatch that has the most kinds of corrections."""
    return max(_ends_of(run), key=lambda ended: len(ended.by_kind), default=None)


def _ends_of(run: Path) -> list[StudyEnds]:
    """Return the ends of the studies of the run's mismatch, those that fit best first."""
    mismatch = _mismatch(run)
    finished = all_studies() if mismatch else {}
    names = STUDIES[mismatch] if mismatch else ()
    return [_ends(name) for name in names if name in finished and study.study_path(name).is_file()]


def _mismatch(run: Path) -> tuple[str, str] | None:
    """Return the mismatch and the model of a run, from its manifest; None if no study has this mismatch."""
    try:
        manifest = recorded.manifest(run)
    except DamagedFile:
        return None
    rollout = manifest.config.get("rollout", {})
    model = REAL if manifest.model == "smollm2" else LONG if manifest.task == "sorting" else SMALL
    if rollout.get("staleness"):
        return OLD, model
    return (CACHE, model) if str(rollout.get("kv_cache_dtype", "")).startswith("fp8") else None


_ends = cached(16, _state)(study_ends.study_ends)
