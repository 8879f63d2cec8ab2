"""The gap of a step by the age of the weights that sampled a token, and by turn, as lines of text."""

from collections.abc import Iterator, Sequence

from rlcorr.analysis.segments import Segment, age_share, by_lag, by_turn
from rlcorr.command.gaps_verb import wrapped
from rlcorr.types import TokenBatch

MOST = 8
"""Ages or turns that are printed; a step may have hundreds of turns."""


def segment_lines(batch: TokenBatch, step: int) -> Iterator[str]:
    """Yield a table by age and one by turn, if the step has several; nothing otherwise."""
    if batch.policy_versions is not None:
        by_age = by_lag(batch, step)
        yield from _table(f"Step {step}, tokens by the age of their weights, in updates", by_age)
        if (part := age_share(by_age)) is not None:
            yield from wrapped(part.sentence)
    if batch.turn_ids is not None:
        yield from _table(f"Step {step}, tokens by turn", by_turn(batch))


def _table(heading: str, segments: Sequence[Segment]) -> Iterator[str]:
    if len(segments) < 2:
        return
    yield ""
    yield f"{heading}:"
    yield f"{'':>8}{'tokens':>12}{'k3':>12}{'mean |d|':>12}{'mean d':>12}"
    for one in segments[:MOST]:
        yield (f"{one.number:>8}{one.tokens:>12,}{one.k3:>12.2g}{one.abs_log_ratio:>12.2g}{one.log_ratio_mean:>+12.2g}")
    if len(segments) > MOST:
        yield f"{len(segments) - MOST} more."
