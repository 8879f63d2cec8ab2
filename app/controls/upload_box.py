"""The box for a person's own files. Together they become a run in a folder of this server, deleted when it stops.

The box is open until files have been read. It then folds to one line: their names, and how much was read.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import state
import streamlit as st
from data import uploads
from data.recorded import LATEST
from streamlit.runtime.uploaded_file_manager import UploadedFile
from text import phrases
from text import yours as say
from text.formatting import plain

from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import ImportSummary

REFUSAL, TAKEN, READ = "upload_refusal", "upload_taken", "upload_read"
"""Keys of the session: why files were refused, and what was picked then; the last files; what was read of them."""
NOT_SENT = '<div class="rl-not-sent" role="alert">{sentence}</div>'


@dataclass(frozen=True)
class Read:
    """Sentences of the box about files that were read: in its folded line, inside, and below."""

    slug: str
    line: str
    details: tuple[str, ...]
    notes: tuple[str, ...]


def take() -> None:
    """Show the box to drop files into, what was read from them, or why they were refused."""
    is_new = state.widget("dropped") not in st.session_state
    read = _shown()
    label = plain(read.line) if read else say.DROP
    # With another key it is another box: what is read folds it, whether somebody has opened the one before or not.
    # After a reload the box is empty, but the files that were in it are shown.
    refusal = st.session_state.get(REFUSAL, ("", None))[0]
    if refusal:
        st.error(plain(say.answers(refusal)))
    is_needed = read is None and (refusal or not state.get("run").startswith(uploads.PREFIX))
    with st.expander(label, expanded=bool(is_needed), key=f"box_{read.slug}" if read else "box"):
        st.caption(phrases.UPLOAD)
        for key, label in phrases.REPAIRS.items():
            option = f"--{key.replace('_', '-')}"
            if option in refusal or state.get(key):
                st.checkbox(f"{label} ({option})", value=state.get(key), key=state.widget(key))
        # All endings are taken: the library says why it does not read one, and Streamlit's own check says nothing.
        in_box = st.file_uploader(phrases.UPLOAD_LABEL, accept_multiple_files=True, key=state.widget("dropped"))
        if is_new and _files(in_box):  # a restarted server knows what is in the box only when it has drawn the box
            st.rerun()
        sentence = say.NOT_SENT.format(limit=st.get_option("server.maxUploadSize"))
        st.html(NOT_SENT.replace("{sentence}", html.escape(sentence)))
        for sentence in read.details if read else ():
            st.caption(plain(sentence))
        if read is None:
            for tab, lines in zip(st.tabs(list(say.RECORD)), say.RECORD.values(), strict=True):
                tab.code("\n".join(lines), language=None, wrap_lines=True)
    for sentence in read.notes if read else ():
        st.info(plain(say.answers(sentence)))


def _shown() -> Read | None:
    """Return what was read of the files of the shown run; None if there are none, or others are refused."""
    read: Read | None = st.session_state.get(READ)
    is_other = read is None or REFUSAL in st.session_state or read.slug != state.get("run")
    return None if is_other else read


def is_refused() -> bool:
    """Check whether the files in the box were refused, and no run was picked since then."""
    refusal = st.session_state.get(REFUSAL)
    return refusal is not None and refusal[1] == _picked()


def _picked() -> tuple[str, str]:
    return state.get("run"), state.get("step")


def read_new_files() -> None:
    """Make a run of files that the box has not had before. Call it before the pickers are drawn, which name the run."""
    dropped = _files(st.session_state.get(state.widget("dropped"), []))
    repairs = _repairs()
    now = *repairs, *(file.file_id for file in dropped)
    if not dropped:  # after a change of page the box is empty
        st.session_state.pop(REFUSAL, None)
    elif now != st.session_state.get(TAKEN):
        _take([(file.name, file.getvalue()) for file in dropped], repairs)
    st.session_state[TAKEN] = now


def _files(in_box: Sequence[object]) -> list[UploadedFile]:
    """Return the files in the box. A restarted server has lost those of before."""
    return [file for file in in_box if isinstance(file, UploadedFile)]


def _repairs() -> tuple[str, ...]:
    return tuple(key for key in phrases.REPAIRS if state.get(key))


def _take(files: list[uploads.DroppedFile], repairs: tuple[str, ...]) -> None:
    """Make a run of these files and select it, or remember why they were refused."""
    st.session_state.pop(REFUSAL, None)
    names = sorted(name for name, _ in files)
    try:
        slug, summary = uploads.take(files, phrases.UPLOADED.format(name=", ".join(names)), repairs)
    except UsageError as error:
        st.session_state[REFUSAL] = " ".join([str(error), *_hints(names)]), _picked()
        return
    st.session_state[READ] = _read(slug, names, summary)
    state.change(run=slug, step=LATEST)


def _hints(names: list[str]) -> list[str]:
    """Return what to do about files whose endings are not read."""
    endings = dict.fromkeys(PurePosixPath(name).suffix.lower() for name in names)
    return list(dict.fromkeys(say.HINTS[ending] for ending in endings if ending in say.HINTS))


def _read(slug: str, names: list[str], summary: ImportSummary) -> Read:
    steps = "" if summary.steps == 1 else phrases.IN_STEPS.format(steps=summary.steps)
    details = [phrases.WELCOME.format(responses=summary.responses, tokens=summary.tokens, steps=steps)]
    if summary.missing:
        fields = "; ".join(f"{name} ({use})" for name, use in summary.missing.items())
        details.append(phrases.MISSING.format(fields=fields))
    line = say.read_line(uploads.name_of(names), summary)
    return Read(slug, line, tuple(details), (*summary.notes, *summary.left_out()))
