"""The studies: mismatches strong enough to break a training run, with one arm per correction and several seeds each.

`runs/study/index.toml` lists the training runs. `runs/study/NAME.parquet` has their results: one row per preset, seed
and step. Before that each finished training run is a file of its own, runs/local/study_NAME/ARM_SEED.parquet.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlcorr.errors import UsageError, unknown
from rlcorr.records import runs, step_files
from rlcorr.records.disk import make_folder, write_whole
from rlcorr.records.recipes import read_entries

FOLDER = runs.ROOT / "study"

MEASURED = {
    "reward": "reward",
    "accuracy": "accuracy",
    "k3": "rollout_corr/k3_kl",
    "kept_fraction": "rollout_corr/kept_fraction",
    "ess": "rollout_corr/trained_eff_sample_size",
    "lr_factor": "lr_factor",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "kl_loss": "actor/kl_loss",
}
"""Column → key of metrics.jsonl."""
REFERENCE_KL = ("kl", "reverse_kl")
"""Columns of the last step alone: both KLs between the last weights and the reference model, in nats per token."""
ORIGIN = ("engine", "engine_settings", "versions", "hardware", "git_commit", "environment", "started", "ended")
"""What the table of a study has of the manifest of each training run."""
CONTROL, DELAYED_CONTROL = "fresh", "fresh_delayed"
"""The arm whose weights sample themselves, in a study of old weights; and the same, shown as many steps later."""


@dataclass(frozen=True)
class Arm:
    """One training run of the study."""

    name: str
    """Name of an entry in [shared.arm], or of a preset."""
    seed: int
    options: tuple[str, ...]
    """Options of `python -m rlcorr train`."""

    @property
    def label(self) -> str:
        return f"{self.name}_{self.seed}"


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of a plan: one number per training run, by which its arms are compared."""

    steps: int
    """The gain is the mean reward of this number of last steps minus that of as many first steps.

    0: the endpoint is a number of the last step instead, the greedy accuracy of the last weights unless `column` says
    otherwise.
    """
    margin: float
    """Two arms are as good as each other if the whole interval of their difference is within ± this margin."""
    primary: tuple[tuple[str, str], ...] = ()
    """Pairs of arms whose comparison was planned as the main one."""
    column: str = "accuracy"
    """Column of the last step that is the endpoint if `steps` is 0."""


@dataclass(frozen=True)
class Study:
    """One mismatch and its training runs."""

    name: str
    title: str
    """A few words for pickers."""
    story: str
    look: str
    arms: tuple[Arm, ...]
    """All arms of the first seed, then those of the next."""
    by_chance: Mapping[str, str] = field(default_factory=dict)
    """Arm → the arm that rejects as many tokens at random."""
    arm_titles: Mapping[str, str] = field(default_factory=dict)
    """Arm → what it does, in words. A preset has its own title."""
    unfinished: bool = False
    """Some of its training runs have not been made yet, so nothing may be concluded."""
    endpoint: Endpoint | None = None
    """The endpoint that was planned before training, if there was a plan."""
    delay: int = 0
    """How many steps old the weights are that sample, in all arms but the control."""
    repeats: tuple[str, ...] = ()
    """Other studies that trained some of the same arms with the same options, on these seeds or on others."""
    kl_answers: int = 0
    """Answers on which the KLs between the last weights and the reference model are measured; 0: they are not."""

    @property
    def planned_endpoint(self) -> Endpoint:
        """Return the endpoint of a study with a plan. Raises `UsageError` if there was none."""
        if self.endpoint is None:
            raise UsageError(f"{self.name} has no endpoint that was planned before training.")
        return self.endpoint


def read_index() -> dict[str, Study]:
    """Return name → study, in the order of the file."""
    shared, entries = read_entries(FOLDER / "index.toml")
    return {name: _study(name, shared | entry, shared) for name, entry in entries.items()}


def finished_studies() -> dict[str, Study]:
    """Return name → study for the studies all of whose training runs have been made."""
    return {name: study for name, study in read_index().items() if not study.unfinished}


def _study(name: str, entry: dict[str, Any], shared: dict[str, Any]) -> Study:
    arms = []
    for seed in entry["seeds"]:
        for arm in entry["arms"]:
            first = seed == entry["seeds"][0] and arm in entry.get("sketched", entry["arms"])
            arm_options = shared.get("arm", {}).get(arm, f"--preset {arm}")
            options = f"{shared['options']} {entry['options']} {entry['sketches'] if first else ''} {arm_options}"
            options += f" --seed {seed} --run study_{name}_{arm}_{seed}"
            arms.append(Arm(arm, seed, tuple(options.split())))
    by_chance = {arm: other for arm, other in shared.get("by_chance", {}).items() if arm in entry["arms"]}
    return Study(
        name, entry.get("title", name), entry["story"], entry["look"], tuple(arms), by_chance,
        shared.get("arm_title", {}), entry.get("unfinished", False), _endpoint(entry), entry.get("delay", 0),
        tuple(entry.get("repeats", ())), entry.get("kl_answers", 0),
    )  # fmt: skip


def _endpoint(entry: dict[str, Any]) -> Endpoint | None:
    if (planned := entry.get("endpoint")) is None:
        return None
    return Endpoint(planned["steps"], planned["margin"], tuple((arm, other) for arm, other in planned["primary"]))


def find_study(name: str) -> Study:
    """Return the study with this name. Raises `UsageError`, which lists the names, if there is none."""
    if name not in (index := read_index()):
        raise unknown("study", name, index)
    return index[name]


# --- from a finished training run to rows ---


def run_rows(run: Path, arm: Arm) -> list[dict[str, Any]]:
    """Return one row per step of a finished training run; a number that a step does not have is None."""
    return [
        {"preset": arm.name, "seed": arm.seed, "step": metrics["step"]}
        | {column: metrics.get(key) for column, key in MEASURED.items()}
        | dict.fromkeys(REFERENCE_KL)
        for metrics in runs.read_metrics(run)
    ]


def study_path(name: str) -> Path:
    return FOLDER / f"{name}.parquet"


def read_study(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read the rows of a study, and the engine, versions, hardware and commits of its training runs.

    Raises `UsageError` if the study has not been trained.
    """
    path = study_path(find_study(name).name)
    if not path.is_file():
        raise UsageError(f"{path} does not exist: python -m rlcorr study {name} --train makes it.")
    return read_table(name)


def read_table(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    advice = f" Delete it; python -m rlcorr study {name} --train makes it again."
    with runs.reading(study_path(name), *step_files.UNREADABLE, advice=advice):
        return step_files.to_rows(study_path(name))


# --- finished training runs, and the table of a study ---


TrainedArm = tuple[list[dict[str, Any]], dict[str, Any]]
"""One row per step; and engine, versions, hardware, commit, and if the run has exact sketches, η of every arm."""


def arm_path(study: Study, arm: Arm) -> Path:
    return runs.LOCAL / f"study_{study.name}" / f"{arm.label}.parquet"


def write_trained(study: Study, arm: Arm, trained: TrainedArm) -> None:
    path, (rows, about) = arm_path(study, arm), trained
    make_folder(path.parent, parents=True)
    write_whole(path, step_files.from_rows(rows, about | {"options": digest(arm)}))


def digest(arm: Arm) -> str:
    return hashlib.sha256(" ".join(arm.options).encode()).hexdigest()[:12]


def missing(study: Study) -> list[Arm]:
    """Return the arms that are neither in the table nor in a file, in the order of the index.

    Raises `UsageError` if one was trained with other options.
    """
    in_table, arms = trained_options(study), []
    for arm in study.arms:
        path, options = study_path(study.name), in_table.get(arm.label)
        if options is None and arm_path(study, arm).is_file():
            path = arm_path(study, arm)
            options = step_files.to_rows(path)[1]["options"]
        if options is None:
            arms.append(arm)
        elif options != digest(arm):
            raise UsageError(
                f"{path}: {arm.label} was trained with other options than the index has now; delete the file."
            )
    return arms


def trained_options(study: Study) -> dict[str, str]:
    """Return label → digest of the options, for the arms that the table has."""
    return read_table(study.name)[1]["trainings"] if study_path(study.name).is_file() else {}


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


# --- results ---

LAST = 0.25
"""Share of the steps that are the end of a training run."""


@dataclass(frozen=True)
class SeedRange:
    """A number over the seeds: mean, lowest and highest. Three seeds are too few for a narrower interval."""

    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Outcome:
    """The results of a preset, over the seeds."""

    preset: str
    reward: SeedRange
    """Mean over the last quarter."""
    best_reward: SeedRange
    """The highest mean over five steps."""
    k3: SeedRange
    """Median over the last quarter."""
    kept_fraction: SeedRange
    """Mean over all steps."""


def outcomes(rows: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    """Return the outcome of each preset, the highest reward at the end first."""
    outcomes = [
        Outcome(
            preset=preset,
            reward=over_seeds([fmean(_end(run, "reward")) for run in by_seed.values()]),
            best_reward=over_seeds([max(_smooth(_numbers(run, "reward"))) for run in by_seed.values()]),
            k3=over_seeds([median(_end(run, "k3")) for run in by_seed.values()]),
            kept_fraction=over_seeds([fmean(_numbers(run, "kept_fraction")) for run in by_seed.values()]),
        )
        for preset, by_seed in _by_arm(rows).items()
    ]
    return sorted(outcomes, key=lambda outcome: -outcome.reward.mean)


def course(rows: Sequence[Mapping[str, Any]], preset: str, column: str) -> tuple[list[int], list[SeedRange]]:
    """Return the steps of a preset, and at each step the range of a column over its seeds."""
    of_preset = [row for row in rows if row["preset"] == preset]
    steps = sorted({row["step"] for row in of_preset})
    return steps, [over_seeds([row[column] for row in of_preset if row["step"] == step]) for step in steps]


def end_rewards(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return arm → seed → mean reward over the last quarter of the steps."""
    return _of_each_run(rows, lambda run: fmean(_end(run, "reward")))


def gains(rows: Sequence[Mapping[str, Any]], steps: int) -> dict[str, dict[int, float]]:
    """Return arm → seed → mean reward of the last steps minus that of as many first steps."""
    return _of_each_run(
        rows, lambda run: fmean(_numbers(run[-steps:], "reward")) - fmean(_numbers(run[:steps], "reward"))
    )


def late_rewards(rows: Sequence[Mapping[str, Any]], steps: int, *, earlier: int = 0) -> dict[str, dict[int, float]]:
    """Return arm → seed → mean reward of the last steps, or of as many steps that ended `earlier` steps before."""
    first, last = -earlier - steps, -earlier or None
    return _of_each_run(rows, lambda run: fmean(_numbers(run[first:last], "reward")))


def delayed_control(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the control with the reward of step t at step t + delay, where the other arms show it.

    Their answers of step t come from the weights of step t − delay, so without damage they would have these rewards.
    """
    last = max(row["step"] for row in rows)
    control = [row for row in rows if row["preset"] == CONTROL and study.delay]
    moved = [{**row, "preset": DELAYED_CONTROL, "step": row["step"] + study.delay} for row in control]
    return [row for row in moved if row["step"] <= last]


def last_accuracies(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return arm → seed → greedy accuracy on held-out prompts after the last step."""
    return last_values(rows, "accuracy")


def last_values(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, dict[int, float]]:
    """Return arm → seed → a column of the last step."""
    return _of_each_run(rows, lambda run: run[-1][column])


def endpoints(rows: Sequence[Mapping[str, Any]], endpoint: Endpoint) -> dict[str, dict[int, float]]:
    """Return arm → seed → the planned endpoint."""
    return gains(rows, endpoint.steps) if endpoint.steps else last_values(rows, endpoint.column)


def _of_each_run(
    rows: Sequence[Mapping[str, Any]], number: Callable[[Sequence[Mapping[str, Any]]], float]
) -> dict[str, dict[int, float]]:
    """Return arm → seed → a number computed from the rows of one training run."""
    return {arm: {seed: number(run) for seed, run in by_seed.items()} for arm, by_seed in _by_arm(rows).items()}


def _by_arm(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, list[Mapping[str, Any]]]]:
    """Return arm → seed → the rows of one training run."""
    by_arm: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        by_arm.setdefault(row["preset"], {}).setdefault(row["seed"], []).append(row)
    return by_arm


def over_seeds(values: Sequence[float]) -> SeedRange:
    return SeedRange(fmean(values), min(values), max(values))


def _end(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    return _numbers(rows[-max(1, round(LAST * len(rows))) :], column)


def _numbers(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    """Return the numbers of a column. A step whose batch was skipped has none; NaN if no step has one."""
    return [row[column] for row in rows if row[column] is not None] or [nan]


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    return [fmean(values[first : first + width]) for first in range(max(1, len(values) - width + 1))]
