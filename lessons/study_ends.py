"""Read where the training runs of a study begin and end, and draw it next to the control without a mismatch."""

from collections.abc import Sequence
from dataclasses import astuple
from functools import cache
from statistics import fmean
from typing import Any

from dots import dots

from rlcorr.figures.canvas import Figure
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import Endpoint, end_rewards, endpoints, find_study, over_seeds, read_study
from rlcorr.records.study_comparisons import Comparison, compare_endpoints

STUDIES = {
    "decide_stale": "short answers, old weights",
    "decide_cache": "short answers, coarse cache",
    "decide_long_stale": "long answers, old weights",
    "decide_long_cache": "long answers, coarse cache",
}
CONTROLS = {"decide_stale": "stale_0", "decide_cache": "stale_0"}
"""Study → the study with the same task, options and learning rate and without a mismatch. Long answers have none."""


@cache
def rows_of(study: str) -> list[dict[str, Any]]:
    return read_study(study)[0]


def contrasts(study: str, endpoint: Endpoint | None = None) -> dict[tuple[str, str], Comparison]:
    """Return (arm, other arm) → the difference of their planned endpoints or of another one, planned pairs first."""
    pairs = compare_endpoints(rows_of(study), endpoint or find_study(study).planned_endpoint)
    return {(pair.arm, pair.against): pair for pair in pairs}


def planned_ends(study: str) -> dict[str, dict[int, float]]:
    """Return arm → seed → the planned endpoint."""
    return endpoints(rows_of(study), find_study(study).planned_endpoint)


def start(study: str) -> float:
    """Return the mean reward of the first step, over all training runs: no correction has changed anything yet."""
    return fmean(row["reward"] for row in rows_of(study) if row["step"] == 1)


def ends(study: str) -> dict[str, Interval]:
    """Return arm → mean, lowest and highest reward at the end, over the seeds."""
    return {
        arm: Interval(*astuple(over_seeds(list(by_seed.values()))))
        for arm, by_seed in end_rewards(rows_of(study)).items()
    }


def control(study: str) -> float | None:
    """Return the reward at the end without a mismatch and without a correction, or None if no such run was made."""
    return ends(CONTROLS[study])["disabled"].value if study in CONTROLS else None


def end_dots(study: str, arms: Sequence[str]) -> Figure:
    """Draw the reward at the end of these arms, with lines at the start and at the control."""
    end = control(study)
    lines = {"start": start(study), **({} if end is None else {"no mismatch": end})}
    at_end = ends(study)
    made = dots("mean and range over the seeds", {arm: at_end[arm] for arm in arms}, x_name="reward at the end",
                lines=lines, x_range=(0, 0.85))  # fmt: skip
    return made.update_layout({"margin.r": 80})  # room for the last label of a slider
