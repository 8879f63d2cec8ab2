"""Runs made of files that visitors dropped: in a folder of this server, which is deleted when it stops.

A run belongs to the session that made it. Its name cannot be guessed. Whoever has its link can open it until it
expires, or until its session has made `QUOTA` newer ones. What a visitor and the server may keep is limited in bytes.
"""

import functools
import hashlib
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import streamlit as st

from data.queueing import one_at_a_time
from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import ImportSummary, summarize, write_run
from rlcorr.foreign.read_file import ENDINGS, read_parts
from rlcorr.foreign.steps import Source, read_steps
from rlcorr.records.disk import CannotWrite, write_whole
from rlcorr.records.run_folders import remove_abandoned, take_lock

PREFIX, FOLDER_PREFIX = "upload_", "rlcorr_uploads_"
QUOTA = 12
"""Number of runs that a session may have; the oldest one is deleted for the next."""
EXPIRY = 24 * 3600.0
"""Seconds after which a run is deleted."""
OF_VISITOR, OF_SERVER = 256 << 20, 4 << 30
"""Bytes that the runs of a session may have; the oldest ones are deleted for the next. Bytes of all sessions."""

NAME_FILE = "dropped_as.log"
"""File in the folder of such a run, with the name of the dropped file; hashes of logs are not in a manifest."""

DroppedFile = tuple[str, bytes]
"""Name and content."""


@functools.cache
def folder() -> tempfile.TemporaryDirectory:
    """Make the folder of this server, and delete those of servers that were killed.

    It is locked while this process lives, and a thread deletes what has expired in it, whether somebody comes or not.
    """
    made = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True)
    take_lock(Path(made.name))
    remove_abandoned(Path(made.name).parent, rf"{FOLDER_PREFIX}\w+")

    def expire() -> None:
        while Path(made.name).is_dir():
            _remove_expired(Path(made.name))
            time.sleep(max(EXPIRY / 100, 1.0))

    threading.Thread(target=expire, daemon=True).start()
    return made


def take(files: Sequence[DroppedFile], story: str, repairs: Sequence[str] = ()) -> tuple[str, ImportSummary]:
    """Make a run of these files for this session, and return its slug and a summary.

    Args:
        files: The files, in any order.
        story: The sentence about the run that the pages show.
        repairs: Options of `import` that make readable what is refused without them.

    Raises:
        UsageError: if two files have the same name, a file has an ending that is not read, or the files cannot be read
            as log-prob pairs.
    """
    repeated = [name for name, count in Counter(name for name, _ in files).items() if count > 1]
    if repeated:
        raise UsageError(
            f"two files are named {repeated[0]!r:.80}: rename one, so that each rank or step has its name."
        )
    ordered = sorted(files)
    _refuse_other_endings(ordered)
    of_file, join = {repair: True for repair in repairs if repair != "join"}, "join" in repairs

    def source(name: str, content: bytes) -> Source:
        return Source(name, lambda: iter(read_parts(name, content, **of_file)), len(content))

    sources = [source(*file) for file in ordered]
    slug = PREFIX + _digest(ordered, repairs)
    run = Path(folder().name) / slug
    _remove_expired(run.parent)
    if bytes_of(run.parent) > OF_SERVER:
        raise UsageError(
            f"this server keeps at most {OF_SERVER >> 30} GiB of dropped files, and has them now. Come back in some "
            "hours, or start the app on your own machine."
        )
    if (run / "manifest.json").is_file():
        return slug, summarize(read_steps(sources, join=join))
    summary = write_run(run, one_at_a_time(read_steps(sources, join=join)), story)
    _keep(run, name_of([name for name, _ in ordered]))
    return slug, summary


def _refuse_other_endings(files: Sequence[DroppedFile]) -> None:
    """Refuse a table among other files before these are read, so that the message is about it."""
    for name, content in files:
        if PurePosixPath(name).suffix.lower() not in ENDINGS:
            read_parts(name, content)


def _keep(run: Path, name: str) -> None:
    """Add a run to those of this session, and delete its oldest ones that are too many or too large.

    Raises `UsageError` if the disk is full; then the run is deleted.
    """
    try:
        write_whole(run / NAME_FILE, name.encode())
    except CannotWrite:
        shutil.rmtree(run, ignore_errors=True)
        raise
    made, kept = [*dict.fromkeys([*st.session_state.get("uploads", []), run.name])], 0
    for age, name in enumerate(reversed(made)):
        kept += bytes_of(run.with_name(name))
        if age >= QUOTA or (age and kept > OF_VISITOR):
            shutil.rmtree(run.with_name(name), ignore_errors=True)
    st.session_state["uploads"] = [name for name in made if run.with_name(name).is_dir()]


def bytes_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def name_of(names: Sequence[str]) -> str:
    """Return how a page names these files, the first of which comes first."""
    first, *more = sorted(names)
    return f"{first} and {len(more)} more" if more else first


def shown_name(slug: str) -> str:
    """Return how a page names this run: the dropped file's name, or for any other run its slug."""
    file = Path(folder().name) / slug / NAME_FILE
    return file.read_text(encoding="utf-8") if slug.startswith(PREFIX) and file.is_file() else slug


def _digest(files: Sequence[DroppedFile], repairs: Sequence[str]) -> str:
    """Return a hash of names, lengths and contents, and of a secret of this session."""
    digest = hashlib.sha256(st.session_state.setdefault("upload_secret", secrets.token_bytes(16)))
    for name, content in files:
        digest.update(f"{len(name.encode())} {len(content)} ".encode() + name.encode() + content)
    digest.update(" ".join(repairs).encode())
    return digest.hexdigest()[:24]


def _remove_expired(folder: Path) -> None:
    """Delete the runs of all sessions that are older than `EXPIRY`."""
    for run in folder.glob(f"{PREFIX}*/"):
        if _is_expired(run):
            shutil.rmtree(run, ignore_errors=True)


def _is_expired(run: Path) -> bool:
    with suppress(FileNotFoundError):  # it is not whole yet, or is just being deleted
        return time.time() - (run / "manifest.json").stat().st_mtime > EXPIRY
    return False


def mine() -> dict[str, Path]:
    """Return slug → run: what this session has dropped or opened, which after a reload is what it dropped before."""
    named, root = st.query_params.get("run", ""), Path(folder().name)
    slugs = dict.fromkeys((*st.session_state.get("opened_uploads", ()), *st.session_state.get("uploads", ()), named))
    # Only letters and digits after the prefix: a slug of the URL must not leave the folder.
    slugs = [slug for slug in slugs if re.fullmatch(rf"{PREFIX}[0-9a-z]{{1,56}}", slug)]
    runs = {slug: root / slug for slug in slugs if (root / slug / "manifest.json").is_file()}
    runs = {slug: run for slug, run in runs.items() if not _is_expired(run)}
    st.session_state["opened_uploads"] = tuple(runs)
    return runs
