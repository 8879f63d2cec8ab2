"""`python -m rlcorr threshold`: from a recorded run to bounds that keep so much of it, as text for a system."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rlcorr.analysis.budget import correction_named
from rlcorr.analysis.choosing import Kept, chosen, kept, pairs_of
from rlcorr.analysis.verdicts import Look, look, verdict_lines, verdicts
from rlcorr.errors import UsageError
from rlcorr.foreign.rounding import ROUNDING, batch_clamped
from rlcorr.foreign.unsaid import said_of_unpaired
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.systems.export import export
from rlcorr.types import TokenBatch

WIDTH = 118


@dataclass(frozen=True)
class Threshold:
    """The tightest bounds at which so much of a run is kept, what they keep of a step that had no part in the choice,
    and the text that takes them to your system."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""
    preset: str = "decoupled_geo_rs"
    """Whose bounds are moved: a preset's, or those of one rejection rule by its name."""
    rule: int | None = None
    """Which of the preset's rejection rules, from 0; by default its weights, or without them rule 0."""
    keep: float = 95.0
    """At least so many percent of the response tokens pass all bounds; of weights that are truncated, stay as they
    are."""
    system: str = "verl"
    """For which system the text is."""
    version: str | None = None
    """In which of that system's versions; by default the newest that is known."""
    clamp_rounding: bool = False
    """Take log-probs above 0, up to 0.125, for numbers that bfloat16 rounded up, and make them 0; otherwise they are
    refused."""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 100:
            raise UsageError(f"keep is a percentage, above 0 and at most 100; got {self.keep:g}.")


def run_threshold(request: Threshold) -> int:
    config = correction_named(request.preset)
    run = runs.find_run(request.run)
    steps = runs.list_steps(run)
    if not steps:
        raise UsageError(f"{run.name} has no recorded step.")
    looks: list[Look] = []
    batches = _looked_at(run, steps, request.clamp_rounding, looks)
    chosen_on, unseen = pairs_of(batches, with_advantages=config.needs_advantages)
    threshold, config = chosen(chosen_on.batch, config, request.keep / 100, request.rule)
    print(f"{run.name}, {request.preset}: threshold {threshold:g}")
    print("\n".join(textwrap.wrap(config.explain(), WIDTH)))
    first, *others = chosen_on.steps
    where = f"step {first}" + (f" to {others[-1]}" if others else "")
    print(f"Chosen on {where}: {_said(kept(chosen_on.batch, config), chosen_on.batch)}")
    if unseen is None:
        print("The run has no other step to check it on.")
    else:
        said = _said(kept(unseen.batch, config), unseen.batch)
        print(f"On step {unseen.steps[0]}, which had no part in the choice: {said}")
    for line in _looks_like(looks):
        print("\n".join(textwrap.wrap(line, WIDTH)))
    loss = PRESETS[request.preset].loss if request.preset in PRESETS else None
    print(f"\n{export(config, request.system, loss, version=request.version)}", end="")
    return 0


def _looks_like(looks: list[Look]) -> list[str]:
    """Return how many tokens have no pair, and what the others look like."""
    unpaired, tokens = sum(one.unpaired for one in looks), sum(one.tokens for one in looks)
    lines = verdict_lines(verdicts(looks))
    return [said_of_unpaired(unpaired, tokens), *lines] if unpaired else lines


def _looked_at(
    run: Path, steps: list[int], clamp_rounding: bool, looks: list[Look]
) -> Iterator[tuple[int, TokenBatch]]:
    """Yield the batches of a run, each read once; `looks` gets what each looks like."""
    for step in steps:
        batch = _step(run, step, clamp_rounding)
        looks.append(look(step, batch))
        yield step, batch


def _step(run: Path, step: int, clamp_rounding: bool) -> TokenBatch:
    """The batch of a recorded step. Raises `UsageError` where a log-prob is above 0, by more than is allowed."""
    batch = runs.read_step(run, step).batch
    if clamp_rounding:
        batch = batch_clamped(batch)
    try:
        batch.check_values()
    except UsageError as error:
        raise UsageError(f"{run.name}, step {step}: {error} --clamp-rounding makes 0 of up to {ROUNDING}.") from error
    return batch


def _said(of: Kept, batch: TokenBatch) -> str:
    cut = "" if of.cut is None else f", the weights of {of.cut:.2%} are cut"
    tokens = int(batch.response_mask.sum())
    return f"{of.share:.2%} of {tokens:,} tokens are kept{cut}, effective sample size {of.ess:.2%}."
