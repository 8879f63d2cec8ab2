"""`python -m rlcorr study NAME`: what became of every preset, as a table."""

from rlcorr.records.study import SeedRange, find_study, outcomes, read_study

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


def _share(seeds: SeedRange) -> str:
    return f"{seeds.mean:.2f} [{seeds.lowest:.2f}, {seeds.highest:.2f}]"


def _tiny(seeds: SeedRange) -> str:
    return f"{seeds.mean:.0e} [{seeds.lowest:.0e}, {seeds.highest:.0e}]"
