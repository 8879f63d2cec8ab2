"""What the Training page reads, cached by what the file system says. Callers must not change what they get."""

from dataclasses import dataclass
from typing import Any

import streamlit as st

from data import recorded
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import study
from rlcorr.records.study import Outcome
from rlcorr.records.study_comparisons import Comparison, against_chance, against_nothing, foretold


@dataclass(frozen=True)
class StudyTable:
    """The rows of a study, where they come from, at length and in one line, and what became of each preset."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    source: str
    outcomes: list[Outcome]
    against_nothing: list[Comparison]
    against_chance: list[Comparison]
    foretold: dict[tuple[str, int], tuple[dict[str, Interval], Interval]]
    """Training and step → η of every correction there, and its rank correlation with the reward."""


def all_studies() -> dict[str, study.Study]:
    """Name → study; empty without an index."""
    index = study.FOLDER / "index.toml"
    return _studies(str(index), recorded.stamp(index)) if index.is_file() else {}


def table(name: str) -> StudyTable:
    """Raises `UsageError` where the study has not been trained, and `DamagedFile`."""
    path = study.study_path(name)
    return _table(name, str(path), recorded.stamp(path))


@st.cache_resource(max_entries=8, show_spinner=False)
def _studies(index: str, version: recorded.Stamp) -> dict[str, study.Study]:
    return study.read_index()


@st.cache_resource(max_entries=16, show_spinner=False)
def _table(name: str, path: str, version: recorded.Stamp) -> StudyTable:
    rows, facts = study.read_study(name)
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    source = f"study {name} · seeds {seeds} · {recorded.digest(study.study_path(name))}"
    by_chance = study.find_study(name).by_chance
    return StudyTable(
        rows, facts, source, study.outcomes(rows), against_nothing(rows), against_chance(rows, by_chance),
        _foretold(rows, facts.get("progress", {})),
    )  # fmt: skip


def _foretold(
    rows: list[dict[str, Any]], progress: dict[str, dict[str, dict[str, list[float]]]]
) -> dict[tuple[str, int], tuple[dict[str, Interval], Interval]]:
    foretellings = {}
    for training, of_steps in progress.items():
        for step, numbers in of_steps.items():
            of_arms = {arm: Interval(*ends) for arm, ends in numbers.items()}
            agreed = foretold({arm: eta.value for arm, eta in of_arms.items()}, rows)
            foretellings[training, int(step)] = of_arms, agreed
    return foretellings
