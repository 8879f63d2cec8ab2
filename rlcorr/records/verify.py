"""Check a recorded run: its files must match the hashes in its manifest, and must be readable."""

from dataclasses import dataclass
from pathlib import Path

from rlcorr.errors import UsageError, first_line
from rlcorr.records import runs


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
        manifest = runs.read_manifest(run)
    except runs.DamagedFile as error:
        problems.append(str(error))
    else:
        status = manifest.status
        problems += _wrong_hashes(run, manifest.files)
        if status == "running":
            problems.append(f"{run / 'manifest.json'}: the run is still going or was killed; nothing is hashed yet.")
        else:
            unlisted = [name for name in runs.hashed_names(run) if name not in manifest.files]
            problems += [f"{run / name}: the manifest does not list it." for name in unlisted]
    steps = runs.list_steps(run)
    damaged = [problem for step in steps if (problem := _step_problem(run, step))]
    rows, metric_problems = _metrics(run)
    return Report(status, problems + damaged + metric_problems, len(steps) - len(damaged), len(steps), rows)


def _wrong_hashes(run: Path, files: dict[str, str]) -> list[str]:
    problems = []
    for name, expected in files.items():
        path = run / name
        try:
            if not path.resolve().is_relative_to(run.resolve()):
                problems.append(f"{path}: the manifest names a file outside the run.")
            elif (actual := runs.sha256(path)) != expected:
                problems.append(f"{path}: sha256 is {actual[:12]}…, the manifest says {expected!s:.12}….")
        except (FileNotFoundError, NotADirectoryError):
            problems.append(f"{path}: missing.")
        except (OSError, ValueError, RuntimeError, UsageError) as error:  # RuntimeError: links in a circle
            problems.append(f"{path}: cannot be read ({first_line(error)}).")
    return problems


def _step_problem(run: Path, step: int) -> str | None:
    try:
        runs.read_step(run, step)
    except runs.DamagedFile as error:
        return str(error)
    return None


def _metrics(run: Path) -> tuple[int, list[str]]:
    """Return the number of readable rows, and a sentence about the others, if there are any."""
    readable = broken = 0
    try:
        for line in runs.metric_lines(run):
            is_row = runs.metric_row(line) is not None
            readable += is_row
            broken += not is_row and line != b"\n"
    except runs.DamagedFile as error:
        return 0, [str(error)]
    return readable, (
        [f"{runs.metrics_path(run)}: {broken} line(s) cut off or damaged, {readable} readable."] if broken else []
    )
