"""`python -m rlcorr threshold`: the tightest bounds that keep a share of a recorded run, as text for a system."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlcorr.analysis.budget import Kept, choose_bound, correction_named, kept, kept_by_length, pairs_of
from rlcorr.analysis.gap_size import total_size
from rlcorr.analysis.symptoms import mend_first
from rlcorr.analysis.turns import turns_as_rows
from rlcorr.analysis.verdicts import Look, look, verdict_lines, verdicts
from rlcorr.bounds import BoundId
from rlcorr.command.gaps import placement_lines
from rlcorr.command.options import RunName
from rlcorr.command.printing import print_lines, wrap_each
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.foreign.missing_fields import unpaired_sentence
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.systems.export import export
from rlcorr.systems.support_replay import support_replay_text
from rlcorr.types import TokenBatch

FAULT = 'No thresholds: correct the fault that "{pattern}" describes first, and run this again.'


@dataclass(frozen=True)
class Threshold:
    """Find the tightest bounds that keep a share of a run, check them on its last step, and print them for your system.

    The last step is not used for the choice. If the log-probs have a fault that must be mended first, the verb prints
    the diagnosis only, and its exit code is 1.
    """

    run: RunName
    preset: str = "decoupled_geo_rs"
    """Name of the preset, or of the rejection rule, whose bounds are chosen."""
    rule: int | None = None
    """Index of the preset's rejection rule, from 0; by default its weights, or rule 0 if it has no weights."""
    keep: float = 95.0
    """Percentage of the response tokens that must pass all bounds. For truncated weights: percentage of the tokens
    whose weight is not truncated; a cap keeps every token, so the published caps of 2 to 5 are the better start."""
    system: str = "verl"
    """System for which the bounds are printed."""
    top_p: float = 1.0
    """Top-p of your engine's sampling. If it cuts anything off, the text that lets the trainer compute over the same
    tokens (support replay) is printed as well, for the systems that have it."""
    top_k: int = -1
    """Top-k of your engine's sampling; -1: all tokens."""
    per_turn: bool = False
    """Bound every turn of a conversation on its own, as if it were an answer. The run must have turns. No system's text
    is printed, because none corrects per turn; `rlcorr.analysis.turns.correct_per_turn` does."""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 100:
            raise UsageError(f"keep must be a percentage above 0 and at most 100; got {self.keep:g}.")


def run_threshold(request: Threshold) -> int:
    """Print the bounds, and return the exit code: 1 if the log-probs have a fault that must be mended first."""
    config, cuts = correction_named(request.preset), (request.top_p, request.top_k) != (1.0, -1)
    replay = support_replay_text(request.system, top_p=request.top_p, top_k=request.top_k) if cuts else ""
    run = runs.find_run(request.run)
    steps = runs.list_steps(run)
    if not steps:
        raise UsageError(f"{run.name} has no recorded step.")
    looks: list[Look] = []
    batches = _read_batches(run, steps, looks)
    if request.per_turn:
        batches = ((step, turns_as_rows(batch)) for step, batch in batches)
    chosen_on, unseen = pairs_of(batches, with_advantages=config.needs_advantages)
    if (fault := mend_first([symptom for one in looks for symptom in one.symptoms])) is not None:
        print_lines(wrap_each([*_diagnosis(looks), FAULT.format(pattern=fault.pattern)]))
        return 1
    threshold, config = choose_bound(chosen_on.batch, config, request.keep / 100, BoundId(request.rule))
    print(f"{run.name}, {request.preset}: threshold {threshold:g}")
    print_lines(wrap_each([config.explain()]))
    first, *others = chosen_on.steps
    where = f"steps {first} to {others[-1]}" if others else f"step {first}"
    print(f"Chosen on {where}: {_kept_sentence(kept(chosen_on.batch, config), chosen_on.batch)}")
    if unseen is None:
        print("The run has no other step to check it on.")
    else:
        sentence = _kept_sentence(kept(unseen.batch, config), unseen.batch)
        print(f"On step {unseen.steps[0]}, which was not used for the choice: {sentence}")
    about = [*_by_length(chosen_on.batch, config), *wrap_each(_diagnosis(looks))]
    print_lines([*about, *placement_lines(total_size(one.gap for one in looks))])
    if request.per_turn:
        return 0
    loss = PRESETS[request.preset].loss if request.preset in PRESETS else None
    print(f"\n{export(config, request.system, loss)}", end="")
    print(f"\n{replay}" if replay else "", end="")
    return 0


def _by_length(batch: TokenBatch, config: CorrectionConfig) -> list[str]:
    """Return a line per length: what the chosen bounds keep of the same answers cut to that many tokens."""
    of_lengths = kept_by_length(batch, config)
    *cuts, whole = of_lengths
    if not cuts:
        return []
    names = [f"first {length:,} tokens" for length in cuts] + [f"whole, up to {whole:,}"]
    lines = [
        f"  {name:<24}{part.share:>8.2%} kept, effective sample size {part.ess:.2%}"
        for name, part in zip(names, of_lengths.values(), strict=True)
    ]
    return ["The same bounds on the same answers, cut:", *lines]


def _diagnosis(looks: list[Look]) -> list[str]:
    """Return the number of tokens without a pair, if there are any, and verdicts about the others."""
    unpaired, tokens = sum(one.unpaired for one in looks), sum(one.tokens for one in looks)
    lines = verdict_lines(verdicts(looks))
    return [unpaired_sentence(unpaired, tokens), *lines] if unpaired else lines


def _read_batches(run: Path, steps: list[int], looks: list[Look]) -> Iterator[tuple[int, TokenBatch]]:
    """Yield the batches of a run, each read once, and append a summary of each to `looks`."""
    for step in steps:
        batch = runs.read_step(run, step).batch
        batch.check_values()
        looks.append(look(step, batch))
        yield step, batch


def _kept_sentence(result: Kept, batch: TokenBatch) -> str:
    cut = "" if result.cut is None else f", the weights of {result.cut:.2%} are truncated"
    tokens = int(batch.response_mask.sum())
    return f"{result.share:.2%} of {tokens:,} tokens are kept{cut}, effective sample size {result.ess:.2%}."
