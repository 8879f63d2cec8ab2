"""What the Training page reads, cached by what the file system says. Callers must not change what they get."""

from dataclasses import dataclass
from typing import Any

import streamlit as st

from data import recorded
from rlcorr.records import study
from rlcorr.records.study import Outcome


@dataclass(frozen=True)
class StudyTable:
    """The rows of a study, where they come from, at length and in one line, and what became of each preset."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    source: str
    outcomes: list[Outcome]


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
    return StudyTable(rows, facts, source, study.outcomes(rows))
