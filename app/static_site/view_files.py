"""The files of the views: bench, first page, Mismatch, gradient, ranking, KL losses and study, and of each preset."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from components.live_part import ANSWER, LiveContent, Note, Number, Slider
from components.markdown import inline, plain_text
from components.picture import Picture
from controls import strips
from data import corrections, recorded, sketches, studies
from data.bounds import Bound, bounds_of, slider_values_of
from data.kl_example import DISTANCE
from data.options import DRAWN, START_USUAL
from data.reading import USUAL_BATCH
from text import phrases
from text import study_ends as say_study
from text.formatting import number
from views import bench as bench_page
from views import gradient as gradient_page
from views import kl as kl_page
from views import mismatch as mismatch_page
from views import start as start_page
from views import study as study_page

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.triage import triage
from rlcorr.bounds import at_threshold
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.records.step_files import StepRecord
from rlcorr.strips.packing import Package
from rlcorr.systems.export import SYSTEMS, exports
from static_site import parts

COUNT, COUNT_OF_OTHERS = 61, 41
"""Numbers of values of a preset's first slider and of its others. Each preset and run has a file per slider."""
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
    made = {b.key: bench_page.bench_strip(identity, batch, config, b, values) for b, values in with_values}
    for strip in made.values():
        del strip.about["texts"][bench_page.EXPLAINED]  # the same on every run, see `preset_package`
    return parts.part_and_strips(made, content, [parts.bound_slider(*one) for one in with_values], source)


def preset_package(preset: str, bench: str) -> Package:
    """Return what the bench shows about a preset on every run, and the name of its files.

    Under a bound's key are, for each of its slider's values, a sentence that explains the configuration, and for each
    system the lines of the text to export. A line that depends on the value is a list with one text per value.
    """
    entry = PRESETS[preset]
    of_bounds = {
        b.key: [at_threshold(entry.config, value, b.id) for value in values] for b, values in all_values(entry.config)
    } or {parts.WHOLE: [entry.config]}
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
    sliders, content = start_page.part(record, fix, START_USUAL)
    made = {slider.key: start_page.strip(record, fix) for slider in sliders}
    return parts.part_and_strips(made, content, sliders, recorded.source(run, record.step), resets={})[parts.WHOLE]


def mismatch_package(run: Path, step: int) -> Package:
    """Return the Mismatch view: sentences about the cause, and pictures of where the log-probs disagree.

    Raises `UsageError` if the batch has no tokens.
    """
    batch = recorded.step(run, step).batch
    symptoms, methods = triage(batch), {name: TOKEN_METHODS[name] for name in DRAWN}
    numbers = {
        label: Number(number(symptoms[0].numbers[name]), help)
        for label, (name, help) in mismatch_page.SIZES.items()
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
    pictures = [{key: Picture(figure, *mismatch_page.PICTURES[key]) for key, figure in row.items()} for row in rows]
    part = parts.part([], LiveContent(numbers, pictures), recorded.source(run, step), {})
    return Package({}, {"part": part, "sentences": [symptom.sentence for symptom in symptoms]})


# --- the gradient ---


def gradient_packages(run: Path, step: int, preset: str) -> dict[str, Package]:
    """Return a strip of each bound for one batch size, by the bound's key; the whole live part is with the first.

    A slider has the thresholds that were measured. A bound that changes no token has none. Raises `UsageError` if none
    has a slider, or if the gradient's view does.
    """
    config = PRESETS[preset].config
    shown = gradient_page.Shown(run, sketches.sketched(run, step), preset, USUAL_BATCH)
    content, source, measured, refused = gradient_page.gradient(shown, config), recorded.source(run, step), [], ""
    for b in bounds_of(config):
        try:
            sweep = sketches.swept(shown.measured, config, b.id)
            measured.append((b, _reports(shown, config, b, sweep)))
        except UsageError as error:
            refused = str(error)
    if not measured:
        raise UsageError(refused or gradient_page.NO_BOUND)
    curve = {key: picture for key, picture in content.rows[0].items() if key != "ranking"}
    said = gradient_page.study_said(shown, config, _on_site)
    content = replace(content, rows=[curve] if curve else [], said=said)
    sliders = [
        parts.bound_slider(b, [at if at == b.value else float(f"{at:.{DIGITS}g}") for at in reports])
        for b, reports in measured
    ]
    made = {
        b.key: gradient_page.strip_of(shown, config, b, tuple(reports), [*reports.values()], with_ranking=False)
        for b, reports in measured
    }
    return parts.part_and_strips(made, content, sliders, source)


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


def kl_packages(run: Path, step: int | None, loss: str) -> dict[str, Package]:
    """Return the page KL losses for a loss: its live part, and a strip of the position if positions were recorded."""
    shown = kl_page.Shown(loss, DISTANCE, 0.0, kl_page.measured_at(run, step))
    at = {"kl_distance": shown.distance, "kl_position": shown.position}
    sliders = [Slider(key, *words, at[key], generation=0) for key, words in kl_page.ranges(shown).items()]
    made = {slider.key: kl_page.strip(shown, slider.key, tuple(slider.values)) for slider in sliders}
    source = kl_page.source(recorded.source(run, step))
    return parts.part_and_strips(made, kl_page.content(shown), sliders, source, resets={})


# --- studies ---


def study_package(name: str) -> Package:
    """Return the outcomes of a study. Raises `UsageError` if it has not been trained."""
    result, study = studies.table(name), studies.all_studies()[name]
    table = study_page.outcome_table(study, result.outcomes)
    table = table.replace("<div class='rl-table'", "<div tabindex='0' class='rl-table'", 1)  # it scrolls on phones
    drawn = study_page.curves(study, result, studies.few(result))
    rows = [row for row in (study_page.endpoint(study, result), drawn, study_page.against(study, result)) if row]
    content = LiveContent({}, rows, notes=[Note(study_page.OUTCOMES, OUTCOMES)], tables={OUTCOMES: table})
    heading, lines = study_page.said(study, result)
    about = {"part": parts.part([], content, result.source, {}), "heading": inline(heading)}
    return Package({}, about | {"sentences": [f"{study.story} {study.look}", *map(plain_text, lines)]})


def _on_site(sentence: str, name: str) -> str:
    """Return a sentence about a study with a link to it instead of the name of the app's page."""
    link = f"([Study `{name}`](#view=study&study={name}).)"
    return sentence.replace(say_study.STUDY.format(name=name), link)
