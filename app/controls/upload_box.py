"""Files that a person drops: each becomes a run of one step in a folder of this server, which ends with it."""

import hashlib
from pathlib import Path

import streamlit as st
from data import uploads
from remembered import session
from words import words
from words.text import plain

from rlcorr.errors import UsageError
from rlcorr.foreign.pairs import missing, read_pairs, recordable, write_run
from rlcorr.records.step_files import StepRecord

TYPES = ["parquet", "jsonl", "json", "npz", "safetensors"]


def take() -> None:
    """The box to drop a file into, and what came of it."""
    with st.expander("Your own data"):
        st.caption(words.UPLOAD)
        dropped = st.file_uploader("A file of log-prob pairs", TYPES, key="dropped", on_change=_dropped)
        for sentence in st.session_state.get("upload_said", []) if dropped is not None else []:
            (st.error if sentence.startswith("!") else st.info)(plain(sentence.removeprefix("!")))


def _dropped() -> None:
    """Before the page is drawn: so the pickers know the run already."""
    file = st.session_state["dropped"]
    if file is None:
        return
    content = file.getvalue()
    slug = f"upload_{hashlib.sha256(content).hexdigest()[:16]}"
    try:
        record = read_pairs(file.name, content)
    except UsageError as error:
        st.session_state["upload_said"] = [f"!{error}"]
        return
    run = Path(uploads.folder().name) / slug
    if not (run / "manifest.json").is_file():
        write_run(run, recordable(record), words.UPLOADED.format(name=file.name))
    st.session_state["uploads"] = [*dict.fromkeys([*st.session_state.get("uploads", []), slug])]
    st.session_state["run"], st.session_state["step"] = slug, session.LATEST
    st.session_state["upload_said"] = [_welcome(record), *_lacks(record)]


def _welcome(record: StepRecord) -> str:
    mask = record.batch.response_mask
    return f"Read {len(mask)} responses with {int(mask.sum()):,} tokens; every view shows them now."


def _lacks(record: StepRecord) -> list[str]:
    lacking = missing(record)
    if not lacking:
        return []
    return ["Not in the file: " + "; ".join(f"{name} ({use})" for name, use in lacking.items()) + "."]
