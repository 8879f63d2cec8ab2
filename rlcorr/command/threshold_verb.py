"""`python -m rlcorr threshold`: from a recorded run to bounds that keep so much of it, as text for a system."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor

from rlcorr.analysis.budget import correction_named, keep_at_least
from rlcorr.analysis.thresholds import at_threshold, is_ratio
from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs
from rlcorr.diagnostics import evaluate
from rlcorr.errors import UsageError
from rlcorr.metric_tables import PREFIX
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.systems.export import export
from rlcorr.types import TokenBatch

WIDTH = 118
DIGITS = 4
"""Of a threshold's distance from where it rejects everything, rounded so that it keeps more."""


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
    chosen_on, unseen = _steps(run)
    batch = pooled([_pairs(run, step, config) for step in chosen_on])
    threshold = rounded_up(keep_at_least(batch, config, request.keep / 100, request.rule), config, request.rule)
    config = at_threshold(config, threshold, request.rule)
    print(f"{run.name}, {request.preset}: threshold {threshold:g}")
    print("\n".join(textwrap.wrap(config.explain(), WIDTH)))
    steps = f"step {chosen_on[0]}" + (f" to {chosen_on[-1]}" if chosen_on[1:] else "")
    print(f"Chosen on {steps}: {_kept(batch, config)}")
    if unseen is None:
        print("The run has no other step to check it on.")
    else:
        print(f"On step {unseen}, which had no part in the choice: {_kept(_pairs(run, unseen, config), config)}")
    loss = PRESETS[request.preset].loss if request.preset in PRESETS else None
    print(f"\n{export(config, request.system, loss, version=request.version)}", end="")
    return 0


def _steps(run: Path) -> tuple[list[int], int | None]:
    """Those that the bounds are chosen on, and the last, on which they are checked, where there are two."""
    steps = runs.list_steps(run)
    if not steps:
        raise UsageError(f"{run.name} has no recorded step.")
    return (steps[:-1], steps[-1]) if steps[1:] else (steps, None)


def _pairs(run: Path, step: int, config: CorrectionConfig) -> TokenBatch:
    batch = runs.read_step(run, step).batch
    advantages = batch.advantages if config.needs_advantages else None
    return TokenBatch(batch.response_mask, batch.rollout_log_probs, old_log_probs(batch), advantages=advantages)


def pooled(batches: Sequence[TokenBatch]) -> TokenBatch:
    """The rows of all, each filled up with padding.

    >>> pooled([TokenBatch.from_log_probs(*torch.zeros(2, 1, t), torch.ones(1, t)) for t in (2, 3)]).response_mask.sum()
    tensor(5)
    """
    width = max(batch.response_mask.shape[1] for batch in batches)
    columns = [batch.tensors() for batch in batches]
    for name in columns[0]:
        if not all(name in tensors for tensors in columns):
            raise UsageError(f"{name} is in some of the steps, and not in all.")
    return TokenBatch(**{name: torch.cat([_filled(x[name], width) for x in columns]) for name in columns[0]})


def _filled(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))


def rounded_up(threshold: float, config: CorrectionConfig, rule: int | None) -> float:
    """With few digits, and no tighter: of a ratio those of its distance from 1.

    >>> config = correction_named("decoupled_geo_rs")
    >>> rounded_up(1.000123456, config, None)
    1.0001235
    """
    offset = 1.0 if is_ratio(config, rule) and threshold > 1 else 0.0
    distance = threshold - offset
    if not 0 < distance < math.inf:
        return threshold
    unit = 10.0 ** (math.floor(math.log10(distance)) - DIGITS + 1)
    return float(f"{offset + math.ceil(distance / unit * (1 - 1e-12)) * unit:.12g}")


def _kept(batch: TokenBatch, config: CorrectionConfig) -> str:
    numbers = evaluate(batch, config)[1]
    kept, ess = numbers[f"{PREFIX}kept_fraction"], numbers[f"{PREFIX}trained_eff_sample_size"]
    outside = numbers.get(f"{PREFIX}rollout_is_oob_ratio")
    cut = "" if outside is None else f", the weights of {outside:.2%} are cut"
    return f"{kept:.2%} of {int(batch.response_mask.sum()):,} tokens are kept{cut}, effective sample size {ess:.2%}."
