"""Recorded runs: write files atomically, read what is there, and name the file that is damaged.

    runs/<slug>/manifest.json                  what made the run, and a sha256 per file once it is finished
               metrics.jsonl                   one JSON object per step, flushed as it is written; in the committed
                                               runs, which are finished, as metrics.jsonl.gz
               answers.jsonl                   greedy answers to a few held-out prompts over the steps (`held_out.py`)
               steps/step_000012.parquet       one row per sequence: texts, ids, log-probs
               sketch/step_000012.safetensors.gz  score sketches (`sketch_files.py`), in runs that have them
               checkpoint/                     in runs that ship a model

A run contains the pairs of log-probs from before any correction, so every preset can be replayed on it.
"""

import gzip
import hashlib
import itertools
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import rlcorr
from rlcorr.errors import UsageError, first_line, unknown
from rlcorr.records import disk, step_files
from rlcorr.records.disk import UNREADABLE, make_folder, write_whole
from rlcorr.records.step_files import StepRecord

SCHEMA_VERSION = 2
"""Programs of before 2 do not know packed metrics: they would read none, and say nothing."""
_PARENT = Path(rlcorr.__file__).resolve().parent.parent
_PACKAGED = _PARENT / "rlcorr_runs"  # the folder of the runs in a wheel
ROOT = Path(os.environ.get("RLCORR_RUNS") or (_PACKAGED if _PACKAGED.is_dir() else _PARENT / "runs")).absolute()
"""Committed runs. RLCORR_RUNS names another folder."""
LOCAL = (Path("runs").absolute() if ROOT == _PACKAGED else ROOT) / "local"
"""Local runs. If rlcorr is installed from a wheel, they are below the working directory."""

_CHECKSUM = "crc32"
"""Key of the manifest: the CRC-32 of the others, as JSON. Manifests of older versions have none."""

# Not hashed: unfinished files, logs, and folders whose files still grow after the run has ended.
_UNHASHED_ENDINGS = (".tmp", ".log")
_UNHASHED_FOLDERS = ("tensorboard", "wandb")
_LARGEST_MANIFEST = 16 << 20
"""Bytes. That of a run of 1,000 steps has 100,000."""


@dataclass(frozen=True)
class RunManifest:
    """The origin of a run. `status` is running, complete or interrupted; `files` maps path → sha256."""

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
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that change numbers, such as TRITON_F32_DEFAULT. Runs before version 0.3 have none of these four."""
    weights_sha256: dict[str, str] = field(default_factory=dict)
    inputs_sha256: dict[str, str] = field(default_factory=dict)
    """Of the file of prompts and of the module of the reward function. Runs before version 0.4 have no such hashes."""
    resumed: list[dict[str, Any]] = field(default_factory=list)
    """After which steps another commit or other versions went on, and which."""
    started: str = ""
    ended: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


class DamagedFile(UsageError):
    """A file of a run that cannot be read; the message names it."""


# --- finding ---


def list_runs() -> dict[str, Path]:
    """Return slug → directory of the runs with steps: committed runs first, then local ones, newest first."""
    return _listed()[0]


def unlisted_runs() -> list[str]:
    """Return a sentence about each folder that may be a run, but cannot be listed."""
    return _listed()[1]


def _listed() -> tuple[dict[str, Path], list[str]]:
    runs: dict[str, Path] = {}
    problems: list[str] = []
    for root, newest_first in ((ROOT, False), (LOCAL, True)):
        order: dict[Path, Any] = {}
        for path in root.glob("*"):
            try:  # one bad folder must not hide the others: that of another user, or one whose name is no text
                path.name.encode()
                # A hidden folder is a run that is not whole yet.
                if not path.name.startswith(".") and (path / "steps").is_dir():
                    os.scandir(path / "steps").close()
                    order[path] = (path / "steps").stat().st_mtime if newest_first else path.name
            except (OSError, UnicodeEncodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "its name is no text"
                problems.append(f"{str(path)!a} is left out: {why}.")
        for path in sorted(order, key=order.__getitem__, reverse=newest_first):
            runs.setdefault(path.name, path)
    return runs, problems


def find_run(name: str) -> Path:
    """Return the directory of a run, given its slug or path. Raises `UsageError`, which lists the runs, if unknown."""
    runs = list_runs()
    if name in runs:
        return runs[name]
    if (Path(name) / "manifest.json").is_file():
        return Path(name)
    raise unknown("run", name, runs)


# --- reading ---


@contextmanager
def reading(path: Path, *errors: type[Exception], advice: str = "") -> Iterator[None]:
    """Replace one of `UNREADABLE` or `errors`, in a `with` block that reads this file, by `DamagedFile`."""
    try:
        yield
    except DamagedFile:
        raise
    except (*UNREADABLE, *errors) as error:
        raise DamagedFile(f"{path}: cannot be read ({first_line(error)}).{advice}") from error


def read_manifest(run: Path) -> RunManifest:
    """Read the manifest. Raises `DamagedFile` if it is missing, unreadable or of another schema version."""
    path = run / "manifest.json"
    try:
        content = json.loads(disk.content_of(path, _LARGEST_MANIFEST))
        written = content.pop(_CHECKSUM, None)
        names = {f.name for f in fields(RunManifest)}
        manifest = RunManifest(**{key: value for key, value in content.items() if key in names})
        for name, kind in get_type_hints(RunManifest).items():
            if not isinstance(getattr(manifest, name), get_origin(kind) or kind):
                raise TypeError(f"{name} is a {type(getattr(manifest, name)).__name__}")
    except (*UNREADABLE, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path}: not a readable manifest ({first_line(error)}).") from error
    if written is not None and written != _checksum(content):
        raise DamagedFile(
            f"{path}: its contents differ from their checksum; if they were changed on purpose, delete {_CHECKSUM}."
        )
    if manifest.schema_version not in (1, SCHEMA_VERSION):
        raise DamagedFile(f"{path}: schema version {manifest.schema_version}; this program reads {SCHEMA_VERSION}.")
    return manifest


def metrics_path(run: Path) -> Path:
    """Return the path of the metrics: the packed file if there is one, else the file to which lines are added."""
    packed = run / "metrics.jsonl.gz"
    return packed if packed.is_file() else run / "metrics.jsonl"


def metric_lines(run: Path) -> Iterator[bytes]:
    """Yield the lines of the metrics; the last one may be cut off.

    Raises `DamagedFile` for a packed file that cannot be read.
    """
    path = metrics_path(run)
    if path.is_file():
        with reading(path):
            yield from disk.lines_of(path)


def metric_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None if it is cut off, still being written, or names no step."""
    row = disk.parsed(line)
    return row if row is not None and "step" in row else None


def pack_metrics(run: Path) -> None:
    """Pack the metrics into an eighth of the bytes. DuckDB, pandas and polars read the compressed file, too."""
    plain = run / "metrics.jsonl"
    write_whole(run / "metrics.jsonl.gz", gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return every row of the metrics. Raises `DamagedFile` as `metric_lines` does."""
    return [row for line in metric_lines(run) if (row := metric_row(line)) is not None]


def list_steps(run: Path) -> list[int]:
    """Return the recorded steps, ascending, including damaged ones."""
    return list_numbers(run / "steps", "parquet")


def list_numbers(folder: Path, ending: str) -> list[int]:
    """Return the steps that have a file `step_000012.ending` in this folder, ascending, without unfinished files."""
    files = (path for path in folder.glob(f"step_*.{ending}") if path.is_file())  # a FIFO would never be read
    names = (re.fullmatch(rf"step_(\d{{1,9}})\.{re.escape(ending)}", path.name) for path in files)
    return sorted(int(match[1]) for match in names if match)


def step_path(run: Path, step: int) -> Path:
    return run / "steps" / f"step_{step:06d}.parquet"


def list_sketches(run: Path) -> list[int]:
    """Return the steps with a score sketch, ascending; `sketch_files.py` reads and writes them."""
    return list_numbers(run / "sketch", "safetensors.gz")


def sketch_path(run: Path, step: int) -> Path:
    return run / "sketch" / f"step_{step:06d}.safetensors.gz"


def read_step(run: Path, step: int) -> StepRecord:
    """Read one recorded step. Raises `DamagedFile` if the file is missing, cut off or lacks a column."""
    path = step_path(run, step)
    try:
        hashes = read_manifest(run).files
    except DamagedFile:  # `verify` says so
        hashes = {}
    with reading(path, *step_files.UNREADABLE):
        return step_files.to_step(path, step, hashes.get(path.relative_to(run).as_posix(), ""))


# --- writing ---


def refuse_existing(run: Path) -> None:
    """Raise `UsageError` if a run is there already."""
    if (run / "manifest.json").exists():
        raise UsageError(f"{run} already contains a run; choose another name or delete it.")


def new_directory(run: Path) -> None:
    """Make the directory of a new run. Raises `UsageError` if a run is there already."""
    refuse_existing(run)
    make_folder(run, parents=True)


def start_run(run: Path, manifest: RunManifest) -> None:
    """Make the directory of a new run, and write its first manifest. Raises `UsageError` if a run is there already."""
    new_directory(run)
    write_manifest(run, manifest)


def free_name(prefix: str) -> str:
    """Return `prefix_1`, or the name with the next number that no local run has."""
    used_names = {path.name for path in LOCAL.glob(f"{prefix}_*")}
    return next(name for n in itertools.count(1) if (name := f"{prefix}_{n}") not in used_names)


def write_manifest(run: Path, manifest: RunManifest) -> None:
    """Write the manifest with a checksum, which a reader compares."""
    content = json.loads(json.dumps(asdict(manifest)))  # as a reader sees it
    content[_CHECKSUM] = _checksum(content)
    write_whole(run / "manifest.json", (json.dumps(content, indent=2) + "\n").encode())


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def finish_run(run: Path, manifest: RunManifest) -> None:
    """Write the final manifest with the sha256 of every file of the run."""
    files = {name: sha256(run / name) for name in hashed_names(run)}
    write_manifest(run, RunManifest(**{**asdict(manifest), "files": files}))


def hashed_names(run: Path) -> list[str]:
    """Return the paths of the files, relative to the run, that a finished manifest lists."""
    names = sorted(p.relative_to(run) for p in run.rglob("*") if p.is_file() and p.suffix not in _UNHASHED_ENDINGS)
    return [name.as_posix() for name in names if name.parts[0] not in ("manifest.json", *_UNHASHED_FOLDERS)]


def append_metrics(run: Path, row: dict[str, Any]) -> None:
    """Add a row of metrics. Numbers are rounded to seven digits, as many as float32 has."""
    short = {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in row.items()}
    disk.append_line(run / "metrics.jsonl", short)


def rewind(run: Path, step: int) -> None:
    """Delete everything after `step`, for a run that continues from there."""
    rows = [row for row in read_metrics(run) if row["step"] <= step]
    metrics_path(run).unlink(missing_ok=True)
    write_whole(run / "metrics.jsonl", disk.as_lines(rows))
    for path_of, recorded in ((step_path, list_steps(run)), (sketch_path, list_sketches(run))):
        for later in recorded:
            if later > step:
                path_of(run, later).unlink()


def write_step(run: Path, record: StepRecord) -> None:
    """Write the pairs of one step as Parquet, in bit-exact float32."""
    content = step_files.from_step(record)
    make_folder(run / "steps")
    write_whole(step_path(run, record.step), content)


def sha256(path: Path) -> str:
    """Return the hash of a file of any size. Raises as `opened` does."""
    with disk.opened(path, sys.maxsize) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
