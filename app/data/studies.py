"""Studies for the Training page, cached by the state of their files. Callers must not change what they get."""

from dataclasses import dataclass
from typing import Any

import streamlit as st

from data import recorded
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import study
from rlcorr.records.study import Outcome
from rlcorr.records.study_comparisons import (
    NO_CORRECTION,
    Comparison,
    against_chance,
    against_nothing,
    progress_correlation,
)


@dataclass(frozen=True)
class StudyTable:
    """A study: its rows, facts about how they were made, its source in one line, and the outcome of each preset."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    source: str
    outcomes: list[Outcome]
    against_nothing: list[Comparison]
    against_chance: list[Comparison]
    predictions: dict[tuple[str, int], tuple[dict[str, Interval], Interval]]
    """(training run, step) → η of every correction there, and its rank correlation with the reward."""


def all_studies() -> dict[str, study.Study]:
    """Return name → study; empty without an index."""
    index = study.FOLDER / "index.toml"
    return _studies(str(index), recorded.stamp(index)) if index.is_file() else {}


def table(name: str) -> StudyTable:
    """Return the rows and outcomes of a study.

    Raises `UsageError` if the study has not been trained, and `DamagedFile` if its file cannot be read.
    """
    path = study.study_path(name)
    return _table(name, str(path), recorded.stamp(path))


def few(result: StudyTable) -> list[str]:
    """Return the presets to draw first: the best three, the last, and no correction. More lines are hard to see."""
    order = [outcome.preset for outcome in result.outcomes]
    shown = {*order[:3], order[-1], *NO_CORRECTION}
    return [arm for arm in order if arm in shown]


@st.cache_resource(max_entries=8, show_spinner=False)
def _studies(index: str, version: recorded.Stamp) -> dict[str, study.Study]:
    return study.finished_studies()


@st.cache_resource(max_entries=16, show_spinner=False)
def _table(name: str, path: str, version: recorded.Stamp) -> StudyTable:
    rows, facts = study.read_study(name)
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    source = f"study {name} · seeds {seeds} · {recorded.digest(study.study_path(name))}"
    by_chance = study.find_study(name).by_chance
    return StudyTable(
        rows, facts, source, study.outcomes(rows), against_nothing(rows), against_chance(rows, by_chance),
        _predictions(rows, facts.get("progress", {})),
    )  # fmt: skip


def _predictions(
    rows: list[dict[str, Any]], progress: dict[str, dict[str, dict[str, list[float]]]]
) -> dict[tuple[str, int], tuple[dict[str, Interval], Interval]]:
    predictions = {}
    for training_run, steps in progress.items():
        for step, numbers in steps.items():
            eta = {arm: Interval(*ends) for arm, ends in numbers.items()}
            correlation = progress_correlation({arm: interval.value for arm, interval in eta.items()}, rows)
            predictions[training_run, int(step)] = eta, correlation
    return predictions
