"""`python -m rlcorr verify`: whether the files of a run are whole."""

from dataclasses import dataclass

from rlcorr.command.options import RunName
from rlcorr.records import runs
from rlcorr.records.verify import verify


@dataclass(frozen=True)
class Verify:
    """Check the files of a run: their hashes, and whether every step can be read."""

    run: RunName


def run_verify(request: Verify) -> int:
    """Print the problems of a run, and return the exit code: 1 if there are any."""
    path = runs.find_run(request.run)
    report = verify(path)
    for problem in report.problems:
        print(problem)
    print(
        f"{path.name}: {report.status}; {report.readable_steps} of {report.recorded_steps} recorded steps readable, "
        f"{report.metric_rows} rows of metrics; {len(report.problems) or 'no'} problem(s)."
    )
    return int(bool(report.problems))
