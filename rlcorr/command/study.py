"""`python -m rlcorr study`: train the missing runs of a study, and print a table of its arms."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any

import tyro
from tqdm import tqdm

from rlcorr.command.printing import bracketed, interval_text, table_row
from rlcorr.command.study_workers import train_here, train_on_ray
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import study as studies
from rlcorr.records import study_comparisons as conclusions
from rlcorr.records.study import gather, missing, trained_options

COLUMNS = ("reward at the end", "highest on the way", "k3 at the end", "kept")
WIDTHS = (-24, 22, 22, 22, 22)
UNFINISHED = "Some training runs of this study have not been made yet: nothing may be concluded from what follows."
UNITS = (
    "Mean over the seeds [lowest, highest]. At the end: the last quarter of the steps (the median for k3). Highest on "
    "the way: the best mean of five consecutive steps."
)
DELAY = (
    "Answers of step t come from weights of step t - {steps}. Mean reward of the last {steps} steps minus that of "
    "fresh, and minus that of fresh {steps} steps earlier, when its weights were as old:"
)

POOLED = "Greedy accuracy after the last step, together with {names} (a repeated seed counts once): {means}"

KL = {
    "kl": "KL(π‖start) of the last weights, nats per token of their own answers:",
    "reverse_kl": "KL(start‖π), nats per token of the start's answers:",
}
LOGGED = "What the loss logged of it at the last step: {means}"


# --- the verb ---


@dataclass(frozen=True)
class Study:
    """Print a table of each arm's result in a study; with --train, make the missing training runs first."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of a study in runs/study/index.toml, or all."""
    train: bool = False
    """Make the training runs that are missing. Each one is written to a file when it ends, so you can interrupt a study
    and continue it later."""
    address: str = ""
    """Address of a Ray cluster, as host:port or auto; empty: Ray on this machine if it is installed, otherwise one
    training run after the other."""
    gpus: float = 0.0
    """Share of a GPU that each training run takes on Ray."""


def run_study(request: Study) -> int:
    """Train what is missing if asked to, print the tables, and return the exit code."""
    for name in studies.finished_studies() if request.name == "all" else [request.name]:
        if request.train:
            _train_missing(request, studies.find_study(name))
        print("\n".join(study_table(name)), "\n")
    return 0


def _train_missing(request: Study, study: studies.Study) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the engine, as on Ray
    has_ray = importlib.util.find_spec("ray") is not None
    if (request.address or request.gpus) and not has_ray:
        raise UsageError("ray is not installed: pip install ray, or leave out --address and --gpus.")
    if arms := missing(study):
        on_ray = train_on_ray(study, arms, request.address, request.gpus)
        for _ in tqdm(on_ray if has_ray else train_here(study, arms), total=len(arms), desc=study.name, unit="run"):
            pass
    if not trained_options(study).keys() >= {arm.label for arm in study.arms}:  # files may come from another machine
        print(f"written {gather(study)}")


# --- the table ---


def study_table(name: str) -> list[str]:
    """Return the lines of a table: the story of the study, its arms by their reward at the end, and comparisons."""
    study = studies.find_study(name)
    rows, origin = studies.read_study(name)
    seeds, steps = len({row["seed"] for row in rows}), max(row["step"] for row in rows)
    commits = " and ".join(origin["git_commits"])
    commits += ", which training run had which is not recorded" * (" and " in commits and "origins" not in origin)
    lines = [
        f"{name}: {study.story}",
        study.look,
        f"{seeds} seeds, {steps} steps; {origin['engine']}, {origin['hardware']}; commit {commits}",
        *([UNFINISHED] if study.unfinished else []),
        "",
        table_row(["arm", *COLUMNS], WIDTHS),
    ]
    for outcome in studies.outcomes(rows):
        rewards = (_seeds_text(outcome.reward), _seeds_text(outcome.best_reward))
        cells = [outcome.preset, *rewards, _seeds_text(outcome.k3, ".0e"), _seeds_text(outcome.kept_fraction)]
        lines.append(table_row(cells, WIDTHS))
    return [*lines, "", UNITS, *_comparison_lines(study, rows, origin.get("progress", {}))]


def _comparison_lines(
    study: studies.Study, rows: Sequence[Mapping[str, Any]], progress: Mapping[str, Any]
) -> list[str]:
    """Return the differences from no correction and from random rejection, and how well η predicted the rewards."""
    if study.endpoint is not None:
        lines = [*_endpoint_lines(rows, study.endpoint), *(kl_lines(rows, study.endpoint) if study.kl_answers else ())]
        return [*lines, *_delay_lines(rows, study.delay), *_pooled_lines(rows, study)]
    lines = []
    for reference, pairs in (
        ("no correction", conclusions.against_nothing(rows)),
        ("rejecting as many tokens at random", conclusions.against_chance(rows, study.by_chance)),
    ):
        if pairs:
            lines += ["", f"Reward at the end minus that of {reference}, on the same seeds; joint 95 % intervals:"]
        for pair in pairs:
            note = "" if pair.difference.tells else "  not significant"
            lines.append(table_row([pair.arm, interval_text(pair.difference)], [-24, 26]) + note)
    for run, progress_by_step in progress.items():
        for step, arms in progress_by_step.items():
            eta = {arm: numbers[0] for arm, numbers in arms.items()}
            correlation = interval_text(conclusions.progress_correlation(eta, rows))
            lines.append(f"η of {len(arms)} arms at step {step} of {run}: rank correlation with rewards {correlation}")
    return lines


def _endpoint_lines(rows: Sequence[Mapping[str, Any]], endpoint: studies.Endpoint) -> list[str]:
    """Return the planned endpoint of each arm, and the differences between arms."""
    steps = endpoint.steps
    name = f"mean reward of the last {steps} steps minus that of the first {steps}"
    lines = ["", f"Gain: {name}." if steps else "Greedy accuracy after the last step:"]
    for arm, by_seed in studies.endpoints(rows, endpoint).items():
        lines.append(table_row([arm, _seeds_text(studies.over_seeds(list(by_seed.values())))], WIDTHS[:2]))
    compared = conclusions.compare_endpoints(rows, endpoint)
    count = sum((pair.arm, pair.against) in endpoint.primary for pair in compared)
    adjusted = conclusions.holm([pair.p_value for pair in compared[:count]])
    lines += ["", "Differences on the same seeds, with 95 % intervals of Student's t:"]
    for number, pair in enumerate(compared):
        planned = f"  planned: p {adjusted[number]:.2g} after Holm's adjustment" if number < count else ""
        verdict = verdict_of(pair.difference, endpoint.margin)
        lines.append(f"{_pair_row(pair)}  {verdict}{planned}")
    return lines


def kl_lines(rows: Sequence[Mapping[str, Any]], endpoint: studies.Endpoint) -> list[str]:
    """Return both KLs between the last weights and the start, with planned differences and those from the first arm."""
    lines = []
    for column, heading in KL.items():
        measured = replace(endpoint, steps=0, column=column)
        by_arm = studies.endpoints(rows, measured)
        lines += ["", heading]
        for arm, by_seed in by_arm.items():
            lines.append(table_row([arm, _seeds_text(studies.over_seeds(list(by_seed.values())), ".3f")], WIDTHS[:2]))
        for pair in conclusions.compare_endpoints(rows, measured):
            if (pair.arm, pair.against) in endpoint.primary or pair.against == next(iter(by_arm)):
                lines.append(_pair_row(pair))
    logged = studies.last_values(rows, "kl_loss")
    means = {arm: fmean(by_seed.values()) for arm, by_seed in logged.items() if None not in by_seed.values()}
    return [*lines, "", LOGGED.format(means=", ".join(f"{arm} {mean:.3g}" for arm, mean in means.items()))]


def _delay_lines(rows: Sequence[Mapping[str, Any]], delay: int) -> list[str]:
    """Return the rewards of the last steps beside those of the control, at the same step and at the same weights."""
    if not delay or all(row["preset"] != studies.CONTROL for row in rows):
        return []
    lines = ["", DELAY.format(steps=delay)]
    same_step, same_weights = (conclusions.against_control(rows, delay, earlier=earlier) for earlier in (0, delay))
    for now, before in zip(same_step, same_weights, strict=True):
        lines.append(table_row([now.arm, *map(interval_text, (now.difference, before.difference))], [-24, 26, 26]))
    return lines


def _pooled_lines(rows: Sequence[Mapping[str, Any]], study: studies.Study) -> list[str]:
    """Return the last accuracies of this study and of those that repeat some of its arms, taken together."""
    if not study.repeats:
        return []
    means, compared = conclusions.pooled_accuracies([rows, *(studies.read_study(name)[0] for name in study.repeats)])
    shown = ", ".join(f"{arm} {mean:.3f}" for arm, mean in means.items())
    return ["", POOLED.format(names=" and ".join(study.repeats), means=shown), *map(_pair_row, compared)]


def _pair_row(pair: conclusions.Comparison) -> str:
    return table_row([f"{pair.arm} - {pair.against}", interval_text(pair.difference)], [-40, 26])


def verdict_of(difference: Interval, margin: float) -> str:
    """Return what an interval says: better, worse, as good (it lies within ± the margin), or not known."""
    if difference.tells:
        return "better" if difference.value > 0 else "worse"
    return "as good" if -margin <= difference.low and difference.high <= margin else "not known"


def _seeds_text(seeds: studies.SeedRange, digits: str = ".2f") -> str:
    return bracketed(seeds.mean, seeds.lowest, seeds.highest, digits)
