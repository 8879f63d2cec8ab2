"""Files that a person drops: together they become a run in a folder of this server, which ends with it."""

import streamlit as st
from data import uploads
from state import session
from text import phrases
from text.formatting import plain

from rlcorr.errors import UsageError
from rlcorr.foreign.imported import Imported
from rlcorr.foreign.pairs import ENDINGS
from rlcorr.foreign.unsaid import said_of_unpaired

TYPES = [ending.removeprefix(".") for ending in ENDINGS]


def take() -> None:
    """The box to drop a file into, and what came of it."""
    with st.container(border=True):
        st.caption(phrases.UPLOAD)
        label = "Files of log-prob pairs: steps, and their ranks"
        st.checkbox(phrases.CLAMP_ROUNDING, key="clamp_rounding", on_change=_dropped)
        dropped = st.file_uploader(label, TYPES, accept_multiple_files=True, key="dropped", on_change=_dropped)
        for sentence in st.session_state.get("upload_said", []) if dropped else []:
            (st.error if sentence.startswith("!") else st.info)(plain(sentence.removeprefix("!")))


def _dropped() -> None:
    """Before the page is drawn: so the pickers know the run already."""
    files = {file.name: file.getvalue() for file in st.session_state.get("dropped") or []}
    if not files:
        return
    try:
        slug, made = uploads.take(files, clamp_rounding=st.session_state["clamp_rounding"])
    except UsageError as error:
        st.session_state["upload_said"] = [f"!{error}"]
        return
    st.session_state["uploads"] = [*dict.fromkeys([*st.session_state.get("uploads", []), slug])]
    st.session_state["run"], st.session_state["step"] = slug, session.LATEST
    st.session_state["upload_said"] = [_welcome(made), *_lacks(made), *made.notes, *_left_out(made)]


def _welcome(made: Imported) -> str:
    steps = "" if made.steps == 1 else f" in {made.steps} steps"
    return f"Read {made.responses} responses with {made.tokens:,} tokens{steps}; every view shows them now."


def _left_out(made: Imported) -> list[str]:
    return [said_of_unpaired(made.unpaired, made.tokens)] if made.unpaired else []


def _lacks(made: Imported) -> list[str]:
    if not made.missing:
        return []
    return ["Not in the file: " + "; ".join(f"{name} ({use})" for name, use in made.missing.items()) + "."]
