"""What is left of each finished training of a study: a file that appears whole, and later a part of the study's table.

runs/local/study_NAME/ARM_SEED.parquet   the rows of one training, with where they come from
runs/study/NAME.parquet                  those of all trainings that are finished
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.records import runs, step_files
from rlcorr.records.study import Arm, Study, read_table, study_path


@dataclass(frozen=True)
class TrainedArm:
    """One finished training."""

    rows: list[dict[str, Any]]
    """One per step."""
    about: dict[str, Any]
    """Engine, versions, hardware, commit; and where the training has exact sketches, η of every arm at those steps."""


def file_of(study: Study, arm: Arm) -> Path:
    return runs.LOCAL / f"study_{study.name}" / f"{arm.label}.parquet"


def write_trained(study: Study, arm: Arm, trained: TrainedArm) -> None:
    path = file_of(study, arm)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = trained.about | {"options": digest(arm)}
    runs.write_whole(path, step_files.from_rows(trained.rows, about))


def digest(arm: Arm) -> str:
    return hashlib.sha256(" ".join(arm.options).encode()).hexdigest()[:12]


def missing(study: Study) -> list[Arm]:
    """The trainings that are neither in the table nor in a file, in the order of the index. Raises `UsageError` where
    one was made with other options."""
    in_table = read_table(study.name)[1]["trainings"] if study_path(study.name).is_file() else {}
    return [
        arm
        for arm in study.arms
        if not (_made(in_table.get(arm.label), arm, study_path(study.name)) or _in_file(study, arm))
    ]


def _in_file(study: Study, arm: Arm) -> bool:
    path = file_of(study, arm)
    return path.is_file() and _made(step_files.to_rows(path)[1]["options"], arm, path)


def _made(options: str | None, arm: Arm, path: Path) -> bool:
    if options not in (None, digest(arm)):
        raise UsageError(f"{path}: {arm.label} was trained with other options than the index has now; delete the file.")
    return options is not None


def gather(study: Study) -> Path:
    """Put every finished training into the table of the study."""
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {"trainings": {}, "progress": {}, "git_commits": []}
    if study_path(study.name).is_file():
        rows, about = read_table(study.name)
    for arm in study.arms:
        if arm.label in about["trainings"] or not file_of(study, arm).is_file():
            continue
        new_rows, new = step_files.to_rows(file_of(study, arm))
        rows += new_rows
        about["trainings"][arm.label] = new["options"]
        if new["progress"]:
            about["progress"][arm.label] = new["progress"]
        for key in ("engine", "engine_settings", "versions", "hardware"):
            about.setdefault(key, new[key])
        about["git_commits"] = sorted({*about["git_commits"], new["git_commit"]})
    order = {(arm.name, arm.seed): place for place, arm in enumerate(study.arms)}
    rows.sort(key=lambda row: (order[row["preset"], row["seed"]], row["step"]))
    runs.write_whole(study_path(study.name), step_files.from_rows(rows, about))
    return study_path(study.name)
