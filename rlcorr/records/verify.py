"""Check a recorded run: its files must match the hashes in its manifest, and must be readable."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rlcorr.records.runs import (
    DamagedFile,
    RunManifest,
    hashed_names,
    list_steps,
    metric_lines,
    metrics_path,
    read_manifest,
    read_metrics,
    read_step,
    sha256,
)


@dataclass(frozen=True)
class Report:
    """The result of `verify`: one sentence per problem, and how much can be read nevertheless."""

    status: str
    problems: list[str]
    readable_steps: int
    recorded_steps: int
    metric_rows: int


def verify(run: Path) -> Report:
    """Check the hashes of a run's files and read its steps and metrics. A damaged run is reported, not raised."""
    problems: list[str] = []
    status = "unknown"
    try:
        manifest = read_manifest(run)
    except DamagedFile as error:
        problems.append(str(error))
    else:
        status = manifest.status
        problems += _wrong_hashes(run, manifest.files)
        if status == "running":
            problems.append(f"{run / 'manifest.json'}: the run is still going or was killed; nothing is hashed yet.")
        else:
            unlisted = [name for name in hashed_names(run) if name not in manifest.files]
            problems += [f"{run / name}: the manifest does not list it." for name in unlisted]
        problems += _wrong_rows(run, manifest)
    steps = list_steps(run)
    damaged = [problem for step in steps if (problem := _step_problem(run, step))]
    rows, metric_problems = _metrics(run)
    return Report(status, problems + damaged + metric_problems, len(steps) - len(damaged), len(steps), rows)


def _wrong_hashes(run: Path, files: dict[str, str]) -> list[str]:
    problems = []
    for name, expected in files.items():
        path = run / name
        if not path.is_file():
            problems.append(f"{path}: missing.")
        elif (actual := sha256(path)) != expected:
            problems.append(f"{path}: sha256 is {actual[:12]}…, the manifest says {expected[:12]}….")
    return problems


def _wrong_rows(run: Path, manifest: RunManifest) -> list[str]:
    """Return the problems of steps that have several rows of metrics, or none.

    A trained run has one row for each step from 1 on; every other run has one for each recorded step. The row is
    written after the pairs, so the last step of a run that was cut off may lack it.
    """
    try:
        counts = Counter(row["step"] for row in read_metrics(run) if isinstance(row["step"], int))
    except DamagedFile:
        return []  # `_metrics` reports it
    recorded = list_steps(run)
    expected = set(recorded if manifest.status == "complete" else recorded[:-1])
    if "steps" in manifest.config:
        expected |= set(range(1, len(counts) + 1))
    problems = {
        "no row": sorted(expected - counts.keys()),
        "several rows": [step for step in counts if counts[step] > 1],
    }
    return [f"{metrics_path(run)}: {many} for {_first_numbers(steps)}." for many, steps in problems.items() if steps]


def _first_numbers(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:5]))
    return f"step {shown}" if len(steps) == 1 else f"steps {shown}{', …' if len(steps) > 5 else ''}"


def _step_problem(run: Path, step: int) -> str | None:
    try:
        read_step(run, step)
    except DamagedFile as error:
        return str(error)
    return None


def _metrics(run: Path) -> tuple[int, list[str]]:
    """Return the number of readable rows, and a sentence about the others, if there are any."""
    try:
        readable, lines = len(read_metrics(run)), metric_lines(run)
    except DamagedFile as error:
        return 0, [str(error)]
    broken = len([line for line in lines if line]) - readable
    return readable, (
        [f"{metrics_path(run)}: {broken} line(s) cut off or damaged, {readable} readable."] if broken else []
    )
