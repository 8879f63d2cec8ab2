"""Greedy answers to a few held-out prompts over the steps of a training run: the file `answers.jsonl` of the run.

One JSON object per step and prompt; step 0 is before the first update.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rlcorr.records.disk import append_line, as_lines, content_of, parsed, write_whole

FILE = "answers.jsonl"


@dataclass(frozen=True)
class HeldOutAnswer:
    """The greedy answer to one held-out prompt after an update."""

    step: int
    prompt: str
    response: str
    reward: float | None


FIELDS = {field.name for field in fields(HeldOutAnswer)}


def append_answers(run: Path, answers: Sequence[HeldOutAnswer]) -> None:
    """Add one line for each answer."""
    for answer in answers:
        append_line(run / FILE, asdict(answer))


def read_answers(run: Path) -> list[HeldOutAnswer]:
    """Return every complete line, in order; none if the run has no such file."""
    if not (run / FILE).exists():
        return []
    rows = map(parsed, content_of(run / FILE, grows=True).splitlines(keepends=True))
    return [HeldOutAnswer(**row) for row in rows if row is not None and row.keys() == FIELDS]


def rewind_answers(run: Path, step: int) -> None:
    """Delete the answers after `step`, for a run that continues from there."""
    kept = [asdict(answer) for answer in read_answers(run) if answer.step <= step]
    if kept:
        write_whole(run / FILE, as_lines(kept))
    else:
        (run / FILE).unlink(missing_ok=True)
