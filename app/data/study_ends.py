"""The study that fits the mismatch of a run, cached by the state of its file."""

from pathlib import Path

import streamlit as st

from data import recorded, studies
from rlcorr.records import study, study_ends
from rlcorr.records.runs import DamagedFile
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


def ends(run: Path, *kinds: str) -> StudyEnds | None:
    """Return the end of the first study of the run's mismatch that has all these kinds of corrections."""
    mismatch = _mismatch(run)
    finished = studies.all_studies() if mismatch else {}
    for name in STUDIES[mismatch] if mismatch else ():
        path = study.study_path(name)
        if name in finished and path.is_file():
            ended = _ends(name, str(path), recorded.stamp(path))
            if {NOTHING, *kinds} <= ended.by_kind.keys():
                return ended
    return None


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


@st.cache_resource(max_entries=16, show_spinner=False)
def _ends(name: str, path: str, version: recorded.Stamp) -> StudyEnds:
    return study_ends.study_ends(name)
