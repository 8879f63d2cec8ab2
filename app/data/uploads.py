"""Runs that visitors have dropped: a folder of this server, which ends with it."""

import tempfile
from pathlib import Path

import streamlit as st


@st.cache_resource(show_spinner=False)
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="rlcorr_uploads_")


def mine() -> dict[str, Path]:
    """slug → run: what this visitor has dropped, and what a link of somebody who has names."""
    named = st.query_params.get("run", "")
    slugs = [*st.session_state.setdefault("uploads", []), named]
    here = Path(folder().name)
    return {slug: here / slug for slug in slugs if slug.startswith("upload_") and _is_there(here, slug)}


def _is_there(here: Path, slug: str) -> bool:
    return slug.removeprefix("upload_").isalnum() and (here / slug / "manifest.json").is_file()
