"""The box for a person's own files. Together they become a run in a folder of this server, deleted when it stops."""

import streamlit as st
from data import uploads
from state import session
from text import phrases
from text.formatting import plain

from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import ImportSummary
from rlcorr.foreign.missing_fields import unpaired_sentence
from rlcorr.foreign.read_file import ENDINGS

TYPES = [ending.removeprefix(".") for ending in ENDINGS]


def take() -> None:
    """Show the box to drop files into, and what was read from them."""
    with st.container(border=True):
        st.caption(phrases.UPLOAD)
        st.checkbox(phrases.CLAMP_ROUNDING, key="clamp_rounding", on_change=_dropped)
        dropped = st.file_uploader(
            phrases.UPLOAD_LABEL, TYPES, accept_multiple_files=True, key="dropped", on_change=_dropped
        )
        for sentence in st.session_state.get("upload_said", []) if dropped else []:
            (st.error if sentence.startswith("!") else st.info)(plain(sentence.removeprefix("!")))


def _dropped() -> None:
    """Make a run of the dropped files before the page is drawn, so that the pickers know the run."""
    files = [(file.name, file.getvalue()) for file in st.session_state.get("dropped") or []]
    if not files:
        return
    try:
        story = phrases.UPLOADED.format(name=", ".join(sorted(name for name, _ in files)))
        clamp = st.session_state.get("clamp_rounding", False)  # a browser may not have drawn the checkbox yet
        slug, summary = uploads.take(files, story, clamp_rounding=clamp)
    except UsageError as error:
        st.session_state["upload_said"] = [f"!{error}"]
        return
    st.session_state["run"], st.session_state["step"] = slug, session.LATEST
    st.session_state["upload_said"] = [_welcome(summary), *_missing(summary), *summary.notes, *_left_out(summary)]


def _welcome(summary: ImportSummary) -> str:
    steps = "" if summary.steps == 1 else phrases.IN_STEPS.format(steps=summary.steps)
    return phrases.WELCOME.format(responses=summary.responses, tokens=summary.tokens, steps=steps)


def _left_out(summary: ImportSummary) -> list[str]:
    return [unpaired_sentence(summary.unpaired, summary.tokens)] if summary.unpaired else []


def _missing(summary: ImportSummary) -> list[str]:
    if not summary.missing:
        return []
    return [phrases.MISSING.format(fields="; ".join(f"{name} ({use})" for name, use in summary.missing.items()))]
