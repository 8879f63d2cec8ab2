"""`python -m rlcorr threshold`: from a recorded run to bounds that keep so much of it, as text for a system."""

import textwrap
from dataclasses import dataclass
from typing import Annotated

import tyro

from rlcorr.analysis.budget import correction_named
from rlcorr.analysis.choosing import Kept, chosen, kept, pairs_of
from rlcorr.errors import UsageError
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

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 100:
            raise UsageError(f"keep is a percentage, above 0 and at most 100; got {self.keep:g}.")


def run_threshold(request: Threshold) -> int:
    config = correction_named(request.preset)
    run = runs.find_run(request.run)
    steps = runs.list_steps(run)
    if not steps:
        raise UsageError(f"{run.name} has no recorded step.")
    batches = ((step, runs.read_step(run, step).batch) for step in steps)
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
    loss = PRESETS[request.preset].loss if request.preset in PRESETS else None
    print(f"\n{export(config, request.system, loss, version=request.version)}", end="")
    return 0


def _said(of: Kept, batch: TokenBatch) -> str:
    cut = "" if of.cut is None else f", the weights of {of.cut:.2%} are cut"
    tokens = int(batch.response_mask.sum())
    return f"{of.share:.2%} of {tokens:,} tokens are kept{cut}, effective sample size {of.ess:.2%}."
