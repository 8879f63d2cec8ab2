"""Runs that visitors have dropped: a folder of this server, which ends with it."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import streamlit as st
from text import phrases

from rlcorr.foreign.imported import Imported, Source, records_of, summary_of, write_run
from rlcorr.foreign.pairs import Part, read_parts


@st.cache_resource(show_spinner=False)
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="rlcorr_uploads_")


def take(files: Mapping[str, bytes], *, clamp_rounding: bool = False) -> tuple[str, Imported]:
    """The name of the run that these files make, and what is in it. Raises `UsageError`."""
    content = b"".join(files[name] for name in sorted(files)) + b"clamped" * clamp_rounding
    digest = hashlib.sha256(content).hexdigest()[:16]

    def parts(name: str) -> Iterator[Part]:
        return iter(read_parts(name, files[name], clamp_rounding=clamp_rounding))

    sources = [Source(name, lambda name=name: parts(name), len(files[name])) for name in sorted(files)]
    slug, shown = f"upload_{digest}", ", ".join(sorted(files))
    here = Path(folder().name) / slug
    if (here / "manifest.json").is_file():
        return slug, summary_of(records_of(sources))
    return slug, write_run(here, records_of(sources), phrases.UPLOADED.format(name=shown))


def mine() -> dict[str, Path]:
    """slug → run: what this visitor has dropped, and what a link of somebody who has names."""
    named = st.query_params.get("run", "")
    slugs = [*st.session_state.setdefault("uploads", []), named]
    here = Path(folder().name)
    return {slug: here / slug for slug in slugs if slug.startswith("upload_") and _is_there(here, slug)}


def _is_there(here: Path, slug: str) -> bool:
    return slug.removeprefix("upload_").isalnum() and (here / slug / "manifest.json").is_file()
