"""The results of each finished training run of a study: first a file, which is written atomically, later a part of the
study's table.

runs/local/study_NAME/ARM_SEED.parquet   the rows of one training run, with their origin
runs/study/NAME.parquet                  the rows of all finished training runs
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.records import runs, step_files
from rlcorr.records.disk import make_folder, write_whole
from rlcorr.records.study import Arm, Study, read_table, study_path

ORIGIN = ("engine", "engine_settings", "versions", "hardware", "git_commit", "environment", "started", "ended")
"""What the table of a study has of the manifest of each training run."""


@dataclass(frozen=True)
class TrainedArm:
    """The results of one finished training run."""

    rows: list[dict[str, Any]]
    """One per step."""
    about: dict[str, Any]
    """Engine, versions, hardware, commit; and if the run has exact sketches, η of every arm at their steps."""


def arm_path(study: Study, arm: Arm) -> Path:
    return runs.LOCAL / f"study_{study.name}" / f"{arm.label}.parquet"


def write_trained(study: Study, arm: Arm, trained: TrainedArm) -> None:
    path = arm_path(study, arm)
    make_folder(path.parent, parents=True)
    about = trained.about | {"options": digest(arm)}
    write_whole(path, step_files.from_rows(trained.rows, about))


def digest(arm: Arm) -> str:
    return hashlib.sha256(" ".join(arm.options).encode()).hexdigest()[:12]


def missing(study: Study) -> list[Arm]:
    """Return the arms that are neither in the table nor in a file, in the order of the index.

    Raises `UsageError` if one was trained with other options.
    """
    in_table = _in_table(study)
    return [
        arm
        for arm in study.arms
        if not (_is_trained(in_table.get(arm.label), arm, study_path(study.name)) or _in_file(study, arm))
    ]


def is_gathered(study: Study) -> bool:
    """Check whether the table has every arm: files may come from another machine, or the last gathering was killed."""
    return _in_table(study).keys() >= {arm.label for arm in study.arms}


def _in_table(study: Study) -> dict[str, str]:
    """Return label → digest of the options, for the arms that the table has."""
    return read_table(study.name)[1]["trainings"] if study_path(study.name).is_file() else {}


def _in_file(study: Study, arm: Arm) -> bool:
    path = arm_path(study, arm)
    return path.is_file() and _is_trained(step_files.to_rows(path)[1]["options"], arm, path)


def _is_trained(options: str | None, arm: Arm, path: Path) -> bool:
    """Check whether the digest of the options is there. Raises `UsageError` if it is of other options."""
    if options not in (None, digest(arm)):
        raise UsageError(f"{path}: {arm.label} was trained with other options than the index has now; delete the file.")
    return options is not None


def gather(study: Study) -> Path:
    """Put every finished training run into the table of the study, and return its path."""
    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {"trainings": {}, "progress": {}, "git_commits": []}
    if study_path(study.name).is_file():
        rows, about = read_table(study.name)
    for arm in study.arms:
        if arm.label in about["trainings"] or not arm_path(study, arm).is_file():
            continue
        arm_rows, arm_about = step_files.to_rows(arm_path(study, arm))
        rows += arm_rows
        about["trainings"][arm.label] = arm_about["options"]
        if arm_about["progress"]:
            about["progress"][arm.label] = arm_about["progress"]
        about.setdefault("origins", {})[arm.label] = {key: arm_about[key] for key in ORIGIN}
        for key in ("engine", "engine_settings", "versions", "hardware"):
            about.setdefault(key, arm_about[key])  # of the first training; `origins` has those of each
        about["git_commits"] = sorted({*about["git_commits"], arm_about["git_commit"]})
    order = {(arm.name, arm.seed): index for index, arm in enumerate(study.arms)}
    rows.sort(key=lambda row: (order[row["preset"], row["seed"]], row["step"]))
    write_whole(study_path(study.name), step_files.from_rows(rows, about))
    return study_path(study.name)
