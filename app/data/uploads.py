"""Runs made of files that visitors dropped: in a folder of this server, which is deleted when it stops."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import streamlit as st

from rlcorr.foreign.import_run import ImportSummary, Source, read_steps, summarize, write_run
from rlcorr.foreign.read_file import Part, read_parts


@st.cache_resource(show_spinner=False)
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="rlcorr_uploads_")


def take(files: Mapping[str, bytes], story: str, *, clamp_rounding: bool = False) -> tuple[str, ImportSummary]:
    """Make a run of these files, and return its slug and a summary.

    Args:
        files: Name → content.
        story: The sentence about the run that the pages show.
        clamp_rounding: Read log-probs slightly above 0 as 0.

    Raises:
        UsageError: if the files cannot be read as log-prob pairs.
    """
    content = b"".join(files[name] for name in sorted(files)) + b"clamped" * clamp_rounding
    digest = hashlib.sha256(content).hexdigest()[:16]

    def parts(name: str) -> Iterator[Part]:
        return iter(read_parts(name, files[name], clamp_rounding=clamp_rounding))

    sources = [Source(name, lambda name=name: parts(name), len(files[name])) for name in sorted(files)]
    slug = f"upload_{digest}"
    run = Path(folder().name) / slug
    if (run / "manifest.json").is_file():
        return slug, summarize(read_steps(sources))
    return slug, write_run(run, read_steps(sources), story)


def mine() -> dict[str, Path]:
    """Return slug → run: what this visitor dropped, and the run that the URL names if another visitor dropped it."""
    named = st.query_params.get("run", "")
    slugs = [*st.session_state.setdefault("uploads", []), named]
    root = Path(folder().name)
    return {slug: root / slug for slug in slugs if slug.startswith("upload_") and _exists(root, slug)}


def _exists(root: Path, slug: str) -> bool:
    # Only letters and digits after the prefix: a slug of the URL must not leave the folder.
    return slug.removeprefix("upload_").isalnum() and (root / slug / "manifest.json").is_file()
