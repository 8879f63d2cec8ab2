"""`python -m rlcorr study NAME`: what became of every preset, as a table."""

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import find_study, outcomes, read_study

WIDTH = 22
COLUMNS = ("reward at the end", "highest on the way", "k3 at the end", "kept")
HEADING = f"{'preset':<24}" + "".join(f"{name:>{WIDTH}}" for name in COLUMNS)
UNITS = (
    "Mean over the seeds [lowest, highest]. At the end: the last quarter of the steps; of k3 the median. Highest on "
    "the way: five steps together."
)


def study_table(name: str) -> list[str]:
    """Lines of text: the story, then the presets, the highest reward at the end first."""
    study = find_study(name)
    rows, known = read_study(name)
    seeds, steps = len({row["seed"] for row in rows}), max(row["step"] for row in rows)
    lines = [
        f"{name}: {study.story}",
        study.look,
        f"{seeds} seeds, {steps} steps; {known['engine']}, {known['hardware']}",
        "",
        HEADING,
    ]
    for outcome in outcomes(rows):
        shares = (outcome.reward, outcome.best_reward)
        cells = [*map(_share, shares), _tiny(outcome.k3), _share(outcome.kept_fraction)]
        lines.append(f"{outcome.preset:<24}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))
    return [*lines, "", UNITS]


def _share(interval: Interval) -> str:
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _tiny(interval: Interval) -> str:
    return f"{interval.value:.0e} [{interval.low:.0e}, {interval.high:.0e}]"
