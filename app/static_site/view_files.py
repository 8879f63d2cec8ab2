"""The files of the views: bench, first page, Mismatch, gradient, ranking, KL losses and study, and of each preset."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from components.live_part import ANSWER, LiveContent, Note, Number, Picture, Slider
from components.markdown import inline, plain_text
from controls import strips
from data import corrections, recorded, sketches, studies
from data.bounds import Bound, bounds_of, slider_values_of
from data.kl_example import DISTANCE, LOSSES
from data.names import arm_title
from data.reading import USUAL_BATCH
from data.studies import StudyTable
from text import mismatch as mismatch_text
from text import phrases, published
from text import start as start_text
from text import study_ends as say_study
from text import training as training_text
from text.formatting import number
from views import bench as bench_page
from views import gradient as gradient_page
from views import kl as kl_page
from views import start as start_page
from views.training import endpoint_pictures

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.triage import triage
from rlcorr.bounds import at_threshold
from rlcorr.errors import UsageError
from rlcorr.figures import gradients, mismatch
from rlcorr.figures.study import differences, study_curves
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.records.step_files import StepRecord
from rlcorr.records.study_ends import kind_of
from rlcorr.strips.packing import Package, PictureStrip
from rlcorr.systems.export import SYSTEMS, exports
from static_site import parts

COUNT, COUNT_OF_OTHERS = 61, 41
"""Numbers of values of a preset's first slider and of its others. Each preset and run has a file per slider."""
DRAWN = ("TIS", "IcePop", "KPop", "DPPO")
WHOLE = ""
"""Key of the file with the whole bench; other keys are those of bounds."""
BEST, OUTCOMES = "best", "outcomes"
DIGITS = 9
"""Digits of a measured threshold: enough for ratios that are closer to 1 than a millionth."""


def shared_names(presets: Iterable[str], *, on_batch: bool = False) -> dict[str, str]:
    """Return preset → the first of these presets with the same configuration. Both use the files of the first.

    on_batch: the same in what it does to a batch, in weights and rules. The loss may differ.
    """
    first: dict[CorrectionConfig, str] = {}
    configs = {name: PRESETS[name].config for name in presets}
    if on_batch:
        usual_loss = partial(replace, bypass_mode=False, loss_type="ppo_clip", denominator="fixed")
        configs = {name: usual_loss(config) for name, config in configs.items()}
    return {name: first.setdefault(config, name) for name, config in configs.items()}


def all_values(config: CorrectionConfig) -> list[tuple[Bound, tuple[float, ...]]]:
    """Return each bound of a configuration with the values of its slider on the bench, the same on every run."""
    return [
        (b, slider_values_of(b, b.value, count=COUNT_OF_OTHERS if index else COUNT))
        for index, b in enumerate(bounds_of(config))
    ]


def bench_packages(run: Path, step: int, preset: str) -> dict[str, Package]:
    """Return the files of a bench: the whole one with the strip of the first bound, and a strip for each other bound.

    In each strip the other bounds have the preset's values. Raises `UsageError` if the correction does.
    """
    batch, config = recorded.step(run, step).batch, PRESETS[preset].config
    identity, source = corrections.identity(run, step), recorded.source(run, step)
    content = bench_page.bench(identity, batch, config, PRESETS[preset])
    explained = content.notes[0]  # the second note is the preset's, and presets share this file
    content = replace(content, texts={ANSWER: content.texts[ANSWER]}, notes=[explained, Note("")])
    with_values = all_values(config)
    if not with_values:
        return {WHOLE: Package({}, {"part": parts.part([], content, source, {})})}
    packages = {}
    for b, values in with_values:
        strip = bench_page.bench_strip(identity, batch, config, b, values, with_curves=True)
        del strip.about["texts"][bench_page.EXPLAINED]  # the same on every run, see `preset_package`
        if packages:
            packages[b.key] = parts.with_rows(strip, _curves(identity, batch, config, b), source, b.key)
        else:
            sliders = [parts.bound_slider(*one) for one in with_values]
            packages[WHOLE] = parts.with_part(strip, content, sliders, source)
    return packages


def _curves(identity: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, b: Bound) -> LiveContent:
    try:
        curves = bench_page.curves_over(identity, batch, config, b)
    except UsageError as error:
        return LiveContent({}, [], refused=str(error))
    caption = published.CURVES_OVER.format(label=b.label)
    curves["shares_over"] = replace(curves["shares_over"], caption=caption)
    return LiveContent({}, [curves])


def preset_package(preset: str, bench: str) -> Package:
    """Return what the bench shows about a preset on every run, and the name of its files.

    Under a bound's key are, for each of its slider's values, a sentence that explains the configuration, and for each
    system the lines of the text to export. A line that depends on the value is a list with one text per value.
    """
    entry = PRESETS[preset]
    of_bounds = {
        b.key: [at_threshold(entry.config, value, b.id) for value in values] for b, values in all_values(entry.config)
    } or {WHOLE: [entry.config]}
    about = {
        "bench": bench,
        "explained": {key: [config.explain() for config in configs] for key, configs in of_bounds.items()},
        "systems": {key: _exported(preset, configs) for key, configs in of_bounds.items()},
        "hurts": inline(bench_page.when_it_hurts(entry)),
    }
    return Package({}, about)


def _exported(preset: str, configs: list[CorrectionConfig]) -> dict[str, list[str | list[str]]]:
    texts = [exports(config, PRESETS[preset].loss) for config in configs]
    systems: dict[str, list[str | list[str]]] = {}
    for title in SYSTEMS:
        lines_of_texts = [text[title].split("\n") for text in texts]
        most = max(map(len, lines_of_texts))
        lines = list(zip(*([*lines, *[""] * (most - len(lines))] for lines in lines_of_texts), strict=True))
        systems[title] = [line[0] if len({*line}) == 1 else [*line] for line in lines]
    return systems


def start_package(run: Path, record: StepRecord, fix: str) -> Package:
    """Return the tiles of the first page under one of its corrections, with the strip of their slider."""
    sliders, content = start_page.part(record, fix, start_text.USUAL)
    source = recorded.source(run, record.step)
    if not sliders:
        return Package({}, {"part": parts.part([], content, source, {})})
    return parts.with_part(start_page.strip(record, fix), content, sliders, source, resets={})


def mismatch_package(run: Path, step: int) -> Package:
    """Return the Mismatch view: sentences about the cause, and pictures of where the log-probs disagree.

    Raises `UsageError` if the batch has no tokens.
    """
    batch = recorded.step(run, step).batch
    symptoms, methods = triage(batch), {name: TOKEN_METHODS[name] for name in DRAWN}
    numbers = {
        label: Number(number(symptoms[0].numbers[name]), help)
        for label, (name, help) in mismatch_text.SIZES.items()
        if name in symptoms[0].numbers
    }
    rows = [
        {
            "acceptance": mismatch.acceptance(batch, methods),
            "magnified": mismatch.acceptance(batch, methods, magnified=True),
        },
        {
            "tail": mismatch.tail(batch),
            "position": mismatch.by_position(batch),
            "length": mismatch.by_length(batch, SEQUENCE_METHODS),
        },
    ]
    pictures = [{key: Picture(figure, *mismatch_text.PICTURES[key]) for key, figure in row.items()} for row in rows]
    part = parts.part([], LiveContent(numbers, pictures), recorded.source(run, step), {})
    return Package({}, {"part": part, "sentences": [symptom.sentence for symptom in symptoms]})


# --- the gradient ---


def gradient_packages(run: Path, step: int, preset: str) -> dict[str, Package]:
    """Return the curve over each bound for one batch size, by the bound's key; the whole live part is with the first.

    A slider has the thresholds that were measured. A bound that changes no token has none. Raises `UsageError` if none
    has a slider, or if the gradient's view does.
    """
    config = PRESETS[preset].config
    shown = gradient_page.Shown(run, sketches.sketched(run, step), preset, USUAL_BATCH)
    content, source = gradient_page.gradient(shown, config), recorded.source(run, step)
    measured = [(b, sweep, _reports(shown, config, b, sweep)) for b, sweep in _sweeps(shown, config)]
    sliders = [
        parts.bound_slider(b, [at if at == b.value else float(f"{at:.{DIGITS}g}") for at in reports])
        for b, _, reports in measured
    ]
    packages: dict[str, Package] = {}
    for b, sweep, reports in measured:
        cursors = gradients.progress_cursors(sweep, USUAL_BATCH, [*reports])
        numbers = [gradient_page.numbers(report, shown.size_index) for report in reports.values()]
        texts = {ANSWER: [gradient_page.answer(shown, config, report, sweep) for report in reports.values()]}
        strip = strips.package({}, numbers, texts, {"gradient_curves": PictureStrip(shapes=cursors)})
        curves = [gradient_page.curves_over(shown, sweep, b)]
        if packages:
            packages[b.key] = parts.with_rows(strip, LiveContent({}, curves), source, b.key)
        else:
            content = replace(content, rows=curves, refused="", said=gradient_page.study_said(shown, config, _on_site))
            packages[WHOLE] = parts.with_part(strip, content, sliders, source)
    return packages


def _sweeps(shown: gradient_page.Shown, config: CorrectionConfig) -> list[tuple[Bound, GradientSweep]]:
    sweeps, refused = [], UsageError(gradient_page.NO_BOUND)
    for b in bounds_of(config):
        try:
            sweeps.append((b, sketches.swept(shown.measured, config, b.id)))
        except UsageError as error:
            refused = error
    if not sweeps:
        raise refused
    return sweeps


def _reports(
    shown: gradient_page.Shown, config: CorrectionConfig, b: Bound, sweep: GradientSweep
) -> dict[float, GradientReport]:
    """Return threshold → report, from the tightest to the loosest, with the preset's own threshold among them."""
    reports = dict(zip(sweep.thresholds, sweep.ranking.reports, strict=True))
    reports[b.value] = sketches.reported(shown.measured, config)
    values = sorted((value for value in reports if b.low <= value <= b.high), reverse=b.id.side == "lower")
    return {value: reports[value] for value in values}


def ranking_package(run: Path, step: int) -> Package:
    """Return the ranking of all presets by their progress, for every batch size."""
    measured, contents = sketches.sketched(run, step), []
    for size in sketches.BATCH_SIZES:
        picture = gradient_page.ranking_of(gradient_page.Shown(run, measured, "", size))
        best = inline(picture.above)
        contents.append(LiveContent({}, [{"ranking": replace(picture, above="")}], tables={BEST: best}))
    slider = Slider(
        "answers", phrases.BATCH_SIZE, sketches.BATCH_SIZES, USUAL_BATCH, generation=0,
        text=BEST, help=phrases.BATCH_SIZE_IS,
    )  # fmt: skip
    usual = contents[sketches.BATCH_SIZES.index(USUAL_BATCH)]
    package = parts.with_part(strips.package_contents(contents), usual, [slider], recorded.source(run, step), resets={})
    (picture,) = package.about["pictures"].values()
    picture["figures"] = [json.dumps(parts.rounded(json.loads(figure))) for figure in picture["figures"]]
    return package


def kl_packages(run: Path, step: int | None) -> dict[str, Package]:
    """Return the page KL losses: for each loss a file with its live part, and one with the strip of the position."""
    packages = {}
    for loss in LOSSES:
        shown = kl_page.Shown(loss, DISTANCE, 0.0, kl_page.measured_at(run, step))
        ranges, at = kl_page.ranges(shown), {"kl_distance": shown.distance, "kl_position": shown.position}
        sliders = [Slider(key, *labelled, at[key], generation=0) for key, labelled in ranges.items()]
        of_distance, *others = (kl_page.strip(shown, slider.key, tuple(slider.values)) for slider in sliders)
        source = kl_page.source(recorded.source(run, step))
        packages[loss] = parts.with_part(of_distance, kl_page.content(shown), sliders, source, resets={})
        packages |= {f"{loss}.position": parts.small_strip(strip) for strip in others}
    return packages


# --- studies ---


def study_package(name: str) -> Package:
    """Return the outcomes of a study. Raises `UsageError` if it has not been trained."""
    result, study = studies.table(name), studies.all_studies()[name]
    title_of, compared = partial(arm_title, study), {}
    for against, of_arms in (("nothing", result.against_nothing), ("chance", result.against_chance)):
        title, caption = training_text.AGAINST[against]
        if of_arms:
            figure = differences(of_arms, {pair.arm: title_of(pair.arm) for pair in of_arms})
            compared[against] = Picture(figure, title, caption.format(count=len(of_arms)))
    table = training_text.outcome_table(result.outcomes, title_of)
    table = table.replace("<div class='rl-table'", "<div tabindex='0' class='rl-table'", 1)  # it scrolls on phones
    planned = endpoint_pictures(study, result)
    rows = [row for row in (planned, _study_curves(name, result), compared) if row]
    content = LiveContent({}, rows, notes=[Note(training_text.OUTCOMES, OUTCOMES)], tables={OUTCOMES: table})
    heading, sentences = say_study.study_said(
        study, result.planned, result.against_nothing, title_of, len(result.outcomes)
    )
    about = {"part": parts.part([], content, result.source, {}), "heading": inline(heading)}
    return Package({}, about | {"sentences": [f"{study.story} {study.look}", *map(plain_text, sentences)]})


def _study_curves(name: str, result: StudyTable) -> dict[str, Picture]:
    """Return the curves of the reward with lines at the start and at the end without a mismatch, and those of k3."""
    levels = studies.reward_levels(name, result)
    caption = published.REWARD + (published.FRESH if len(levels) > 1 else "")
    texts = training_text.STUDY_CURVES | {"reward": (training_text.STUDY_CURVES["reward"][0], f"{caption}.")}
    pictures = {}
    for metric, of_metric in texts.items():
        drawn = {"log": metric == "k3", "levels": levels if metric == "reward" else None}
        figure = study_curves(result.rows, studies.few(result), metric, **drawn)
        pictures[f"study_{metric}"] = Picture(figure, *of_metric)
    return pictures


def ends_package(run: Path, presets: Iterable[str]) -> Package | None:
    """Return how training runs with two kinds of corrections ended under the mismatch of this run.

    `kinds` has the kind of each preset, and `pairs` a sentence for each two kinds of a study. None without a study.
    """
    kinds = {name: kind for name in presets if (kind := kind_of(PRESETS[name].config)) is not None}
    pairs = {}
    for a, b in itertools.product(dict.fromkeys(kinds.values()), repeat=2):
        if ended := studies.ends(run, a, b):
            pairs[f"{a}|{b}"] = inline(_on_site(say_study.of_two(ended, a, b), ended.name))
    return Package({}, {"kinds": kinds, "pairs": pairs}) if any(pairs.values()) else None


def _on_site(sentence: str, name: str) -> str:
    """Return a sentence about a study with a link to it instead of the name of the app's page."""
    return sentence.replace(say_study.STUDY.format(name=name), published.STUDY_LINK.format(name=name))
