"""Recorded runs: write them whole or not at all, read what is there, say which file is damaged.

    runs/<slug>/manifest.json                  what made the run, and a sha256 per file once it is finished
               metrics.jsonl                   one JSON object per step, flushed as it is written; in the committed
                                               runs, which grow no more, as metrics.jsonl.gz
               answers.jsonl                   greedy answers to a few held-out prompts over the steps (`held_out.py`)
               steps/step_000012.parquet       one row per sequence: texts, ids, log-probs
               sketch/step_000012.safetensors.gz  score sketches (`sketch_files.py`), in runs that have them
               checkpoint/                     in runs that ship a model

A run holds pairs of log-probs from before any correction, so every preset can be replayed on it.
"""

import gzip
import hashlib
import itertools
import json
import os
import re
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import rlcorr
from rlcorr.errors import UsageError, first_line, unknown
from rlcorr.records import step_files
from rlcorr.records.step_files import StepRecord

SCHEMA_VERSION = 1
ROOT = Path(os.environ.get("RLCORR_RUNS", Path(rlcorr.__file__).resolve().parent.parent / "runs"))
"""Committed runs; those made here lie in `runs/local`. RLCORR_RUNS names another folder."""
LOCAL = ROOT / "local"

# Not hashed: unfinished files, logs, and folders whose files go on growing after the run has ended.
_UNHASHED_ENDINGS = (".tmp", ".log")
_UNHASHED_FOLDERS = ("tensorboard", "wandb")


@dataclass(frozen=True)
class RunManifest:
    """Where a run comes from. `status` is running, complete or interrupted; `files` maps path → sha256."""

    slug: str
    story: str = ""
    status: str = "running"
    task: str = ""
    model: str = ""
    seed: int = 0
    trainer_dtype: str = ""
    engine: str = ""
    engine_settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: str = ""
    git_commit: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)
    sketches: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


class DamagedFile(UsageError):
    """A file of a run that cannot be read; the message names it."""


# --- finding ---


def list_runs() -> dict[str, Path]:
    """slug → directory: committed runs first, then local ones, newest first. Only runs that hold steps."""
    runs: dict[str, Path] = {}
    for root, newest_first in ((ROOT, False), (LOCAL, True)):
        directories = [p for p in root.glob("*/") if (p / "steps").is_dir()]
        key = (lambda p: (p / "steps").stat().st_mtime) if newest_first else (lambda p: p.name)
        for path in sorted(directories, key=key, reverse=newest_first):
            runs.setdefault(path.name, path)
    return runs


def find_run(name: str) -> Path:
    """The directory of a run, given its slug or its path. Raises `UsageError` naming what exists."""
    runs = list_runs()
    if name in runs:
        return runs[name]
    if (Path(name) / "manifest.json").is_file():
        return Path(name)
    raise unknown("run", name, runs)


# --- reading ---


def read_manifest(run: Path) -> RunManifest:
    """Raises `DamagedFile` if it is missing, unreadable or of another schema version."""
    path = run / "manifest.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = {f.name for f in fields(RunManifest)}
        manifest = RunManifest(**{key: value for key, value in content.items() if key in names})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path}: not a readable manifest ({error}).") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise DamagedFile(f"{path}: schema version {manifest.schema_version}; this program reads {SCHEMA_VERSION}.")
    if wrong := _wrong_types(manifest):
        raise DamagedFile(f"{path}: not a readable manifest (wrong type: {', '.join(wrong)}).")
    return manifest


def _wrong_types(manifest: RunManifest) -> list[str]:
    """Fields that are not of the type of their default; JSON would let any type in."""
    usual = RunManifest(slug="")
    names = [f.name for f in fields(RunManifest)]
    wrong = [name for name in names if type(getattr(manifest, name)) is not type(getattr(usual, name))]
    hashed = "files" in wrong or all(isinstance(value, str) for value in manifest.files.values())
    return wrong if hashed else [*wrong, "files"]


def metrics_path(run: Path) -> Path:
    """Of the lines as they grow, or of the packed ones of a run that is finished."""
    packed = run / "metrics.jsonl.gz"
    return packed if packed.is_file() else run / "metrics.jsonl"


def metric_lines(run: Path) -> list[str]:
    """The last one is not complete, or empty. Raises `DamagedFile` for packed ones that cannot be read."""
    path = metrics_path(run)
    if not path.is_file():
        return [""]
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DamagedFile(f"{path}: cannot be read ({first_line(error)}).") from error
    return content.decode("utf-8", errors="replace").split("\n")


def pack_metrics(run: Path) -> None:
    """An eighth of the bytes; DuckDB, pandas and polars read them as they are."""
    plain = run / "metrics.jsonl"
    write_whole(run / "metrics.jsonl.gz", gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Every complete line of the metrics. A line that is still being written, or was cut off, is left out. Raises as
    `metric_lines`."""
    rows = []
    for line in metric_lines(run)[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows


def list_steps(run: Path) -> list[int]:
    """Recorded steps, ascending, readable or not."""
    return numbered(run / "steps", "parquet")


def numbered(folder: Path, ending: str) -> list[int]:
    """The steps that have a file `step_000012.ending` in this folder, ascending. Unfinished files do not count."""
    names = (re.fullmatch(rf"step_(\d+)\.{re.escape(ending)}", path.name) for path in folder.glob("step_*"))
    return sorted(int(match[1]) for match in names if match)


def step_path(run: Path, step: int) -> Path:
    return run / "steps" / f"step_{step:06d}.parquet"


def list_sketches(run: Path) -> list[int]:
    """Steps with a score sketch, ascending; `sketch_files.py` reads and writes them."""
    return numbered(run / "sketch", "safetensors.gz")


def sketch_path(run: Path, step: int) -> Path:
    return run / "sketch" / f"step_{step:06d}.safetensors.gz"


def read_step(run: Path, step: int) -> StepRecord:
    """One recorded step as a batch. Raises `DamagedFile` if the file is missing, cut off or lacks a column."""
    path = step_path(run, step)
    try:
        return step_files.to_step(path, step)
    except step_files.UNREADABLE as error:
        raise DamagedFile(f"{path}: cannot be read ({first_line(error)}).") from error


# --- writing ---


def new_directory(run: Path) -> None:
    """Make the directory of a new run. Raises `UsageError` if a run is there already."""
    if (run / "manifest.json").exists():
        raise UsageError(f"{run} already holds a run; choose another name or delete it.")
    run.mkdir(parents=True, exist_ok=True)


def start_run(run: Path, manifest: RunManifest) -> None:
    """A new directory and its first manifest."""
    new_directory(run)
    write_manifest(run, manifest)


def free_name(prefix: str) -> str:
    """`prefix_1`, or the next number that no local run has."""
    taken = {path.name for path in LOCAL.glob(f"{prefix}_*")}
    return next(name for n in itertools.count(1) if (name := f"{prefix}_{n}") not in taken)


def write_manifest(run: Path, manifest: RunManifest) -> None:
    write_whole(run / "manifest.json", (json.dumps(asdict(manifest), indent=2) + "\n").encode())


def finish_run(run: Path, manifest: RunManifest) -> None:
    """Write the final manifest with the sha256 of every file of the run."""
    names = sorted(p.relative_to(run) for p in run.rglob("*") if p.is_file() and p.suffix not in _UNHASHED_ENDINGS)
    names = [name for name in names if name.parts[0] not in ("manifest.json", *_UNHASHED_FOLDERS)]
    files = {name.as_posix(): sha256(run / name) for name in names}
    write_manifest(run, RunManifest(**{**asdict(manifest), "files": files}))


def append_metrics(run: Path, row: dict[str, Any]) -> None:
    """Add a row of metrics. Numbers keep the seven digits that float32 has."""
    short = {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in row.items()}
    append_line(run / "metrics.jsonl", short)


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Add one JSON line with one call, so that a reader sees it whole or not at all.

    A line that a killed process left unfinished is ended first; otherwise the new one would be lost with it.
    """
    with path.open("a+b") as file:
        file.seek(max(file.tell() - 1, 0))
        begin = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(begin + json.dumps(row).encode() + b"\n")


def rewind(run: Path, step: int) -> None:
    """Forget everything after `step`, for a run that goes on from there."""
    rows = [row for row in read_metrics(run) if row["step"] <= step]
    metrics_path(run).unlink(missing_ok=True)
    write_whole(run / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    for path_of, recorded in ((step_path, list_steps(run)), (sketch_path, list_sketches(run))):
        for later in recorded:
            if later > step:
                path_of(run, later).unlink()


def write_step(run: Path, record: StepRecord) -> None:
    """The pairs of one step, bit-exact float32, as Parquet."""
    content = step_files.from_step(record)
    (run / "steps").mkdir(exist_ok=True)
    write_whole(step_path(run, record.step), content)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """A reader sees the old file or the new one, never a part: temporary name, fsync, rename."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
