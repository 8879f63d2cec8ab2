"""Names of runs and presets for people; their slugs follow, because links and commands use these."""

from pathlib import Path

import streamlit as st

from data import recorded, uploads
from rlcorr import PRESETS
from rlcorr.presets.titles import title
from rlcorr.records import runs
from rlcorr.records.recipes import read_entries

BETWEEN = " · "


def run_name(slug: str) -> str:
    """Return the title of a committed run, the file name of an upload, or the slug of another run."""
    if slug.startswith(uploads.PREFIX):
        return uploads.shown_name(slug)
    index = runs.ROOT / "index.toml"
    return _titles(index, recorded.stamp(index)).get(slug, slug)


def run_label(slug: str) -> str:
    """Return the name of a run and its slug."""
    name = run_name(slug)
    return name if name == slug or slug.startswith(uploads.PREFIX) else f"{name}{BETWEEN}{slug}"


def preset_label(name: str) -> str:
    """Return the title of a preset, its system and its slug."""
    preset = PRESETS[name]
    return BETWEEN.join((title(preset), preset.system, name))


@st.cache_data(show_spinner=False, max_entries=4)
def _titles(index: Path, stamp: recorded.Stamp) -> dict[str, str]:
    if stamp == (0, 0):  # there is no index
        return {}
    return {slug: entry["title"] for slug, entry in read_entries(index)[1].items() if "title" in entry}
