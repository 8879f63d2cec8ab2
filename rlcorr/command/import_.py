"""`python -m rlcorr import`: a run of your own log-prob pairs, with a diagnosis of its gap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tqdm import tqdm

from rlcorr.analysis.gap_size import total_size
from rlcorr.analysis.segments import Segment, age_share, by_lag, by_turn
from rlcorr.analysis.verdicts import look, verdict_lines, verdicts
from rlcorr.command.gaps import placement_lines
from rlcorr.command.options import ClampRounding
from rlcorr.command.printing import print_lines, table_row, wrap_each, wrapped
from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import import_files, return_large_blocks
from rlcorr.foreign.read_file import find_files
from rlcorr.records import runs
from rlcorr.records.run_folders import require_run_name
from rlcorr.types import TokenBatch

MOST = 8
"""Ages or turns that are printed; a step may have hundreds of turns."""
SEGMENT_WIDTHS = (8, 12, 12, 12, 12)


@dataclass(frozen=True)
class Import:
    """Make a run of your own log-prob pairs: Parquet, JSON Lines, .npz, .pt or .safetensors, or another system's dump.

    The step of a file is read from its column `step` or from its name; the ranks of a step are merged.
    """

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, or globs. They must hold rollout_log_probs and old_log_probs, and response_mask if they are
    padded."""
    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: imported and the next free number."""
    nan_is_ratio_one: bool = False
    """Leave tokens whose engine log-prob is NaN out of every number, and print how many there are. TRL gives them a
    ratio of 1 and leaves them out of its metrics, too. Without this option NaN is refused."""
    clamp_rounding: ClampRounding = False
    join: bool = False
    """Join the rows that several files have of one step: shards that were cut by size, or a file per micro-batch."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("import needs something to read: files, folders or globs.")
        if self.run:
            require_run_name(self.run)


def run_import(request: Import) -> int:
    """Make the run, print what was read and how it looks, and return the exit code."""
    path = runs.LOCAL / (request.run or runs.free_name("imported"))
    files = find_files(request.paths)
    size = sum(file.stat().st_size for file in files)
    return_large_blocks(size)
    with tqdm(total=size, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        summary = import_files(
            files, path, join=request.join, watch=bar.update, nan_is_ratio_one=request.nan_is_ratio_one,
            clamp_rounding=request.clamp_rounding,
        )  # fmt: skip
    steps = "1 step" if summary.steps == 1 else f"{summary.steps} steps"
    print(f"{path}: {steps}, {summary.responses} responses, {summary.tokens} tokens. Missing fields and their use:")
    print("\n".join(f"  {name:<17} {use}" for name, use in summary.missing.items()))
    looks, segments = [], iter(())
    for step in runs.list_steps(path):
        batch = runs.read_step(path, step).batch
        looks.append(look(step, batch))
        segments = segment_lines(batch, step)  # those of the last step are printed
    said = wrap_each([*summary.notes, *summary.left_out(), *verdict_lines(verdicts(looks))])
    print_lines([*said, *placement_lines(total_size(one.gap for one in looks)), *segments])
    return 0


# --- the gap by the age of the weights that sampled a token, and by turn ---


def segment_lines(batch: TokenBatch, step: int) -> Iterator[str]:
    """Yield a table by age and one by turn, if the step has several; nothing otherwise."""
    if batch.policy_versions is not None:
        by_age = by_lag(batch, step)
        yield from _segment_table(f"Step {step}, tokens by the age of their weights, in updates", by_age)
        if (part := age_share(by_age)) is not None:
            yield from wrapped(part.sentence)
    if batch.turn_ids is not None:
        yield from _segment_table(f"Step {step}, tokens by turn", by_turn(batch))


def _segment_table(heading: str, segments: Sequence[Segment]) -> Iterator[str]:
    if len(segments) < 2:
        return
    yield from ("", f"{heading}:", table_row(["", "tokens", "k3", "mean |d|", "mean d"], SEGMENT_WIDTHS))
    for one in segments[:MOST]:
        sizes = (f"{one.k3:.2g}", f"{one.abs_log_ratio:.2g}", f"{one.log_ratio_mean:+.2g}")
        yield table_row([str(one.number), f"{one.tokens:,}", *sizes], SEGMENT_WIDTHS)
    if len(segments) > MOST:
        yield f"{len(segments) - MOST} more."
