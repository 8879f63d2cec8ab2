"""A table as text: what `python -m rlcorr study NAME` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlcorr.command.gradient_table import bracketed, interval_text
from rlcorr.records.study import SeedRange, Study, find_study, outcomes, read_study
from rlcorr.records.study_comparisons import Comparison, against_chance, against_nothing, foretold

WIDTH = 22
COLUMNS = ("reward at the end", "highest on the way", "k3 at the end", "kept")
HEADING = f"{'arm':<24}" + "".join(f"{name:>{WIDTH}}" for name in COLUMNS)
UNITS = (
    "Mean over the seeds [lowest, highest]. At the end: the last quarter of the steps; of k3 the median. Highest on "
    "the way: five steps together."
)


def study_table(name: str) -> list[str]:
    """Lines of text: the story, then the presets, the highest reward at the end first."""
    study = find_study(name)
    rows, origin = read_study(name)
    seeds, steps = len({row["seed"] for row in rows}), max(row["step"] for row in rows)
    lines = [
        f"{name}: {study.story}",
        study.look,
        f"{seeds} seeds, {steps} steps; {origin['engine']}, {origin['hardware']}",
        "",
        HEADING,
    ]
    for outcome in outcomes(rows):
        cells = [
            _seeds_text(outcome.reward),
            _seeds_text(outcome.best_reward),
            _seeds_text(outcome.k3, ".0e"),
            _seeds_text(outcome.kept_fraction),
        ]
        lines.append(f"{outcome.preset:<24}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))
    return [*lines, "", UNITS, *_decided(study, rows, origin.get("progress", {}))]


def _decided(study: Study, rows: Sequence[Mapping[str, Any]], progress: Mapping[str, Any]) -> list[str]:
    """What differs from no correction, and from as much rejection by chance; and whether η foretold the rewards."""
    lines = _compared("no correction", against_nothing(rows))
    lines += _compared("as much rejection by chance", against_chance(rows, study.by_chance))
    for training, of_steps in progress.items():
        for step, of_arms in of_steps.items():
            agreed = interval_text(foretold({arm: numbers[0] for arm, numbers in of_arms.items()}, rows))
            lines.append(f"η of {len(of_arms)} arms at step {step} of {training}, and their rewards: rank {agreed}")
    return lines


def _compared(against: str, pairs: Sequence[Comparison]) -> list[str]:
    if not pairs:
        return []
    lines = ["", f"Reward at the end less that of {against}, seed by seed; all {len(pairs)} intervals together 95 %."]
    for pair in pairs:
        told = "" if pair.difference.tells else "  not told"
        lines.append(f"{pair.arm:<24}{interval_text(pair.difference):>26}{told}")
    return lines


def _seeds_text(seeds: SeedRange, digits: str = ".2f") -> str:
    return bracketed(seeds.mean, seeds.lowest, seeds.highest, digits)
