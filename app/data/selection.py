"""The run and the step that a page shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data import recorded
from rlcorr.records import runs

NEWEST, LATEST, ANOTHER = "newest", "latest", "another"
"""The run, the step and run B that are shown if nobody has picked one."""


@dataclass(frozen=True)
class Selection:
    """A run, its steps, the one that is shown if one can be read, and sentences about newer ones that cannot."""

    slug: str
    run: Path
    steps: tuple[int, ...]
    step: int | None
    problems: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Return the line that says which run, step and file the pictures of this step show."""
        return recorded.source(self.run, self.step)

    @property
    def step_options(self) -> list[str]:
        return step_options(self.steps)


def step_options(steps: Sequence[int]) -> list[str]:
    return [LATEST, *map(str, reversed(steps))]


def default_run(all_runs: dict[str, Path], view: str) -> str:
    """Return the run that a view shows if nobody has picked one: Gradient prefers a run with sketches."""
    # Rules that reject answers keep nothing of the example of the other views.
    example = recorded.SKETCHED_EXAMPLE if view == "compare" else recorded.EXAMPLE
    return recorded.default_run(all_runs, sketched=view == "gradient", example=example)


def another_run(all_runs: dict[str, Path], first: str) -> str:
    """Return the first other run with a step."""
    others = [slug for slug, path in all_runs.items() if slug != first and recorded.has_steps(path)]
    return (others or [first])[0]


def selected(slug: str, run: Path, step: str) -> Selection:
    """Return this run with this step, or with the latest one that can be read."""
    steps = tuple(runs.list_steps(run))
    if step in map(str, steps):
        return Selection(slug, run, steps, int(step))
    number, problems = recorded.latest(run, [*steps])
    shown = f"Showing step {number}, the newest that can be read." if number is not None else "No step can be read."
    return Selection(slug, run, steps, number, tuple(f"{problem} {shown}" for problem in problems))
