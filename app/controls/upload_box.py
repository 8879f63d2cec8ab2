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
from data.options import REPAIRS
from data.recorded import LATEST
from streamlit.runtime.uploaded_file_manager import UploadedFile
from text.formatting import plain
from text.phrases import answers

from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import ImportSummary

REFUSAL, TAKEN, READ = "upload_refusal", "upload_taken", "upload_read"
"""Keys of the session: why files were refused, and what was picked then; the last files; what was read of them."""
RECORD = {
    "verl: how to record": (
        "export RLCORR_VERL=record RLCORR_RUN=my_run",
        "python -m verl.trainer.main_ppo … actor_rollout_ref.rollout.calculate_log_probs=True",
        "# then drop the files of runs/local/my_run/steps here",
    ),
    "TRL: how to record": (
        "from rlcorr.recorders.trl import RecordPairs",
        'trainer = GRPOTrainer(…, args=GRPOConfig(…, use_vllm=True), callbacks=[RecordPairs("my_run")])',
        "# then drop the files of runs/local/my_run/steps here",
    ),
    "SkyRL: how to record": (
        "from rlcorr.recorders.skyrl import record_pairs",
        'trainer.add_callback(record_pairs("my_run"))  # with generator.sampling_params.logprobs=1',
        "# then drop the files of runs/local/my_run/steps here",
    ),
}
"""Tab → the lines that record both log-probs."""
UPLOAD = (
    "Parquet or JSON Lines with one answer per row; or .npz, .pt or .safetensors with arrays and a mask. Required "
    "are the log-probs of the sampler and of the trainer: rollout_log_probs and old_log_probs, or the names that NeMo "
    "RL, prime-rl, slime, SkyRL and verl use. Several files become the steps of one run. The server of this "
    "page keeps them for a day at most, and deletes them when it stops."
)
HINTS = {
    ".zip": "Unpack it, and drop the files that are in it.",
    ".gz": "Unpack it, and drop the file that is in it.",
    ".csv": "A cell of such a table holds no list of numbers. Write JSON Lines: one answer per line, with a list for "
    "each column.",
    ".txt": "If each line is a JSON object, name the file .jsonl.",
}
"""Ending → what to do with such a file, after the sentence that it is not read."""
NOT_SENT = (
    "A file did not arrive; its reason is beside its name. If it is too large, drop one file per step or per rank: "
    "this server takes {limit} MB, and a proxy before it may take less (413). The command python -m rlcorr report "
    "reads Parquet files of any size."
)


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
    label = plain(read.line) if read else "Drop your files here"
    # With another key it is another box: what is read folds it, whether somebody has opened the one before or not.
    # After a reload the box is empty, but the files that were in it are shown.
    refusal = st.session_state.get(REFUSAL, ("", None))[0]
    if refusal:
        st.error(plain(answers(refusal)))
    is_needed = read is None and (refusal or not state.get("run").startswith(uploads.PREFIX))
    with st.expander(label, expanded=bool(is_needed), key=f"box_{read.slug}" if read else "box"):
        st.caption(UPLOAD)
        for key, label in REPAIRS.items():
            option = f"--{key.replace('_', '-')}"
            if option in refusal or state.get(key):
                st.checkbox(f"{label} ({option})", value=state.get(key), key=state.widget(key))
        # All endings are taken: the library says why it does not read one, and Streamlit's own check says nothing.
        in_box = st.file_uploader(
            "One file per training step (or per rank)", accept_multiple_files=True, key=state.widget("dropped")
        )
        if is_new and _files(in_box):  # a restarted server knows what is in the box only when it has drawn the box
            st.rerun()
        sentence = html.escape(NOT_SENT.format(limit=st.get_option("server.maxUploadSize")))
        st.html(f'<div class="rl-not-sent" role="alert">{sentence}</div>')
        for sentence in read.details if read else ():
            st.caption(plain(sentence))
        if read is None:
            for tab, lines in zip(st.tabs(list(RECORD)), RECORD.values(), strict=True):
                tab.code("\n".join(lines), language=None, wrap_lines=True)
    for sentence in read.notes if read else ():
        st.info(plain(answers(sentence)))


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
    repairs = tuple(key for key in REPAIRS if state.get(key))
    now = *repairs, *(file.file_id for file in dropped)
    if not dropped:  # after a change of page the box is empty
        st.session_state.pop(REFUSAL, None)
    elif now != st.session_state.get(TAKEN):
        _take([(file.name, file.getvalue()) for file in dropped], repairs)
    st.session_state[TAKEN] = now


def _files(in_box: Sequence[object]) -> list[UploadedFile]:
    """Return the files in the box. A restarted server has lost those of before."""
    return [file for file in in_box if isinstance(file, UploadedFile)]


def _take(files: list[uploads.DroppedFile], repairs: tuple[str, ...]) -> None:
    """Make a run of these files and select it, or remember why they were refused."""
    st.session_state.pop(REFUSAL, None)
    names = sorted(name for name, _ in files)
    try:
        slug, summary = uploads.take(files, f"Your file {', '.join(names)}.", repairs)
    except UsageError as error:
        endings = dict.fromkeys(PurePosixPath(name).suffix.lower() for name in names)
        hints = dict.fromkeys(HINTS[ending] for ending in endings if ending in HINTS)
        st.session_state[REFUSAL] = " ".join([str(error), *hints]), _picked()
        return
    st.session_state[READ] = _read(slug, names, summary)
    state.change(run=slug, step=LATEST)


def _read(slug: str, names: list[str], summary: ImportSummary) -> Read:
    one, several = ("", "") if summary.steps == 1 else (f" in {summary.steps} steps", f", {summary.steps} steps")
    size = f"{summary.responses:,} answers, {summary.tokens:,} tokens"
    read = f"{summary.responses} answers with {summary.tokens:,} tokens{one}"
    details = [f"Read {read}; every view shows them now."]
    if summary.missing:
        details.append(f"Not in the file: {'; '.join(f'{name} ({use})' for name, use in summary.missing.items())}.")
    return Read(
        slug, f"{uploads.name_of(names)}: {size}{several}", tuple(details), (*summary.notes, *summary.left_out())
    )
