"""A page of the app, run in this process, onto which files are dropped while its disk fills."""

import subprocess
from pathlib import Path

from app_runs import make_run
from in_process import open_app
from views import bench, compare, gradient, kl, lab, learn, mismatch, start, tokens, training, yours  # noqa: F401

from rlcorr.records.verify import verify


def drop_onto_disk(small: Path, large: Path, disk: Path, read_only: bool) -> None:
    """Drop a small file, and then files that may not fit. Raises `AssertionError` if something is wrong."""
    from data import uploads  # in the app's folder, which is on the path now

    make_run(disk, "alpha", steps=1, sequences=2)
    at = open_app("views/yours.py")
    folder = Path(uploads.folder().name)

    def drop(files: list[Path]) -> str:
        dropped = [(file.name, file.read_bytes(), "application/octet-stream") for file in files]
        at.file_uploader(key="dropped").set_value(dropped).run()
        assert not at.exception, at.exception
        return "\n".join(error.value for error in at.error)

    refused = drop([small])
    before = {path.name for path in folder.iterdir()}
    assert len(before) == (0 if refused else 1), before
    if read_only:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    refused = drop(sorted(large.iterdir()))
    after = {path.name for path in folder.iterdir()}
    assert refused or not read_only, "it succeeded"
    assert len(after - before) == (0 if refused else 1), f"left behind: {after - before}, said {refused}"
    assert "cannot be written" in refused or not refused, refused
    for run in after:
        assert verify(folder / run).problems == [], verify(folder / run).problems
