"""`python -m rlcorr threshold`: the tightest bounds that keep a share of a recorded run, as text for a system."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlcorr.analysis.advice import Option, advise
from rlcorr.analysis.budget import Kept, choose_bound, correction_named, kept, kept_by_length, pairs_of
from rlcorr.analysis.in_words import limits
from rlcorr.analysis.published import among_published
from rlcorr.analysis.segments import turns_as_rows
from rlcorr.analysis.verdicts import Look, look
from rlcorr.bounds import BoundId
from rlcorr.command.gaps import details
from rlcorr.command.options import Details, RunName
from rlcorr.command.printing import print_lines, wrap_each
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.presets import PRESETS
from rlcorr.records import runs
from rlcorr.systems.export import SYSTEMS, export
from rlcorr.systems.support_replay import support_replay_text
from rlcorr.types import TokenBatch

CARD = "Cause, setting and evidence: see the decision card, lessons/DECISION_CARD.md or Learn in the playground."
MISSED = "No configuration is printed, because the promise is not kept. Try another --keep, or a rule on single tokens."


@dataclass(frozen=True)
class Threshold:
    """Find the tightest bounds that keep a share of a run, check them on its last step, and print them for your system.

    The last step is not used for the choice. If the log-probs have a fault that must be mended first, or the last step
    keeps less than was asked for, the verb prints no configuration, and its exit code is 1.
    """

    run: RunName
    preset: str = "decoupled_token_icepop"
    """Name of the preset, or of the rejection rule, whose bounds are chosen; by default a band of token weights, which
    does not depend on the length of answers."""
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
    is printed, because none corrects per turn; `rlcorr.analysis.segments.correct_per_turn` does."""
    details: Details = False

    def __post_init__(self) -> None:
        if self.system not in SYSTEMS:
            raise unknown("system", self.system, SYSTEMS)
        if not 0 < self.keep <= 100:
            raise UsageError(f"keep must be a percentage above 0 and at most 100; got {self.keep:g}.")


def run_threshold(request: Threshold) -> int:
    """Print the bounds, and return the exit code: 1 if there is no configuration to take."""
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
    advice = advise(looks, runs.read_step(run, steps[-1]).batch, request.system)
    print_lines(wrap_each([advice.sentence, advice.reason]))
    if advice.take is None:
        print_lines(details(looks) if request.details else [])
        return 1
    threshold, config = choose_bound(chosen_on.batch, config, request.keep / 100, BoundId(request.rule))
    checked = unseen or chosen_on
    loss = PRESETS[request.preset].loss if request.preset in PRESETS else None
    effect = kept(checked.batch, config)
    option = Option(config, loss, request.preset, effect, promise=request.keep / 100, step=checked.steps[-1])
    print_lines(["", *wrap_each([f"{run.name}, {request.preset}: threshold {threshold:g}. {limits(config)}."])])
    if not request.per_turn and not option.is_missed:
        print("\n".join(filter(None, [export(config, request.system, loss), replay])))
    first, *others = chosen_on.steps
    where = f"steps {first} to {others[-1]}" if others else f"step {first}"
    print(f"Chosen on {where}: {_kept_sentence(kept(chosen_on.batch, config), chosen_on.batch)}")
    if unseen is None:
        print("The run has no other step to check it on.")
    else:
        print(f"On step {option.step}, which was not used for the choice: {_kept_sentence(effect, unseen.batch)}")
    told = [f"That is {option.shortfall}."] * bool(option.shortfall) + [MISSED] * option.is_missed
    print_lines(wrap_each([*told, among_published(advice.k3), CARD]))
    if request.details:
        print_lines([*_by_length(chosen_on.batch, config), *details(looks)])
    return int(option.is_missed)


def _by_length(batch: TokenBatch, config: CorrectionConfig) -> Iterator[str]:
    """Yield a line per length: what the chosen bounds keep of the same answers cut to that many tokens."""
    yield "The same bounds on the same answers, cut:"
    *cuts, whole = (of_lengths := kept_by_length(batch, config))
    for length, part in of_lengths.items():
        name = f"first {length:,} tokens" if length in cuts else f"whole, up to {whole:,}"
        yield f"  {name:<24}{part.share:>8.2%} kept, effective sample size {part.ess:.2%}"


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
