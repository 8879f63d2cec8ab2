"""What more prompts do to the gradients over all likely answers: two runs trained again, with 1,024 prompts."""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch
from bench_gradients import WARM_START, all_ranked, narrow_biases
from processes import rlcorr
from torch import Tensor

from rlcorr import PRESETS
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import BATCH_SIZES, Ranking, difference
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.records.recipes import find_recipe
from rlcorr.records.sketch_files import last_sketch, read_exact

ALL, SOME = 1024, 128
ASKED = f"--train-prompts 0 --sketch.exact-prompts {ALL} --sketch.directions 64"
PRESET = "decoupled_token_is"
SAME = 1e-3
"""A preset whose number has a smaller spread than this is exact."""


def main() -> None:
    for name in ("kv_fp8", "stale_head"):
        for line in lines(recorded(name)):
            print(f"{name}: {line}", flush=True)


def recorded(name: str) -> ExactSketch:
    """The run's last sketch, with more prompts."""
    options = (*find_recipe(name).options, "--model", str(WARM_START), *ASKED.split())
    with tempfile.TemporaryDirectory() as folder:
        done = rlcorr("train", *options, runs_folder=Path(folder), timeout=3600)
        assert done.returncode == 0, done.stderr[-2000:]
        run = Path(folder) / "local" / name
        sketch = read_exact(run, last_sketch(run))
    assert sketch is not None
    return sketch


def lines(sketch: ExactSketch) -> Iterator[str]:
    for count in (SOME, 2 * SOME, 4 * SOME, ALL):
        yield f"{count} prompts: {told(of_prompts(sketch, 0, count))}"
    sets = [of_prompts(sketch, first, first + SOME) for first in range(0, ALL, SOME)]
    rankings = [all_ranked(part.answers.batch, part) for part in sets]
    for what, of_sets in (
        ("relative bias", [[report.relative_bias for report in ranking.reports] for ranking in rankings]),
        ("η(256)", [[report.progress[0] for report in ranking.reports] for ranking in rankings]),
    ):
        yield f"{what}: width of the intervals over that of the spread of {len(rankings)} sets, {calibrated(of_sets)}"
    whole = all_ranked(sketch.answers.batch, sketch)
    for place, size in enumerate(BATCH_SIZES):
        pairs, again, over_all = repeated(rankings, whole, place)
        yield (
            f"B {size}: of the pairs that {SOME} prompts tell apart ({pairs:,} in {len(rankings)} sets of them), "
            f"{again:.1%} have the same order on another set, {over_all:.1%} on all {ALL} prompts"
        )


def of_prompts(sketch: ExactSketch, first: int, end: int) -> ExactSketch:
    """These prompts alone."""
    tree, batch = sketch.tree, sketch.answers.batch
    nodes = _between(tree.prompts, first, end)
    tokens = _between(sketch.answers.prompts.repeat_interleave(batch.response_mask.sum(-1)), first, end)
    part = {field.name: getattr(tree, field.name)[nodes] for field in fields(AnswerTree)}
    part["prompts"] = part["prompts"] - first
    part["parents"] = torch.where(part["parents"] >= 0, part["parents"] - nodes.start, -1)
    return ExactSketch(AnswerTree(**part), sketch.advantages[tokens], sketch.scores[nodes])


def _between(prompts: Tensor, first: int, end: int) -> slice:
    """Where these prompts are: the numbers ascend."""
    return slice(int((prompts < first).sum()), int((prompts < end).sum()))


def told(sketch: ExactSketch) -> str:
    ranking = all_ranked(sketch.answers.batch, sketch)
    report = ranking.reports[list(PRESETS).index(PRESET)]
    noise, eta = report.reference_noise, report.progress[0]
    return (
        f"{narrow_biases(ranking)}; {PRESET}: η({BATCH_SIZES[0]}) {eta.value:.2f} "
        f"[{eta.low:.2f}, {eta.high:.2f}]; share of differences between prompts {noise.value:.2f} "
        f"[{noise.low:.2f}, {noise.high:.2f}]"
    )


def calibrated(of_sets: list[list[Interval]]) -> str:
    """Quartiles over the presets of the mean width of their intervals, over 3.92 standard deviations of their values on
    other draws of prompts: 1 if the intervals are as wide as they should be."""
    values, widths = (
        torch.tensor([[of(interval) for interval in of_set] for of_set in of_sets])
        for of in (lambda interval: interval.value, lambda interval: interval.high - interval.low)
    )
    spread = values.std(0)
    differs = spread > SAME
    ratios = widths.mean(0)[differs] / (3.92 * spread[differs])
    low, middle, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    return f"median {middle:.2f}, quartiles {low:.2f} and {high:.2f}"


def repeated(rankings: list[Ranking], whole: Ranking, place: int) -> tuple[int, float, float]:
    """How many ordered pairs are told apart, in all sets together; how often they have the same order on another set,
    and on all prompts."""
    values = torch.stack([ranking.progress[:, place, 0] for ranking in rankings])  # (sets, C)
    of_whole = whole.progress[:, place, 0]
    again, over_all = [], []
    for number, ranking in enumerate(rankings):
        for a, b in itertools.permutations(range(len(PRESETS)), 2):
            if difference(ranking.progress[a, place], ranking.progress[b, place]).low > 0:
                again += [bool(other[a] > other[b]) for at, other in enumerate(values) if at != number]
                over_all.append(bool(of_whole[a] > of_whole[b]))
    return len(over_all), sum(again) / max(len(again), 1), sum(over_all) / max(len(over_all), 1)
