"""Files of the gradient view: the curve over each bound of a preset, and the ranking of all presets."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from components.live_part import ANSWER, LiveContent, Picture, Slider
from components.markdown import inline
from data import recorded, sketches, study_ends
from data.bounds import Bound, bounds_of
from data.reading import USUAL_BATCH
from live import gradient as live_gradient
from live import strips
from text import gradient as gradient_text
from text import study_ends as say_study

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.presets import RANKED
from rlcorr.records.study_ends import kind_of
from rlcorr.strips.packing import Package, PictureStrip
from static_site import parts
from static_site.benches import WHOLE
from static_site.study_files import on_site

BEST = "best"
DIGITS = 9
"""Digits of a measured threshold: enough for ratios that are closer to 1 than a millionth."""


def gradient_packages(run: Path, step: int, preset: str) -> dict[str, Package]:
    """Return the curve over each bound for one batch size, by the bound's key; the whole live part is with the first.

    A slider has the thresholds that were measured. A bound that changes no token has none. Raises `UsageError` if none
    has a slider, or if the gradient's view does.
    """
    config = PRESETS[preset].config
    shown = live_gradient.Shown(sketches.sketched(run, step), preset, USUAL_BATCH)
    content, source = live_gradient.gradient(shown, config), recorded.source(run, step)
    measured = [(b, sweep, _reports(shown, config, b, sweep)) for b, sweep in _sweeps(shown, config)]
    sliders = [parts.bound_slider(b, _slider_values(b, reports)) for b, _, reports in measured]
    packages: dict[str, Package] = {}
    for b, sweep, reports in measured:
        strip = _strip(shown, sweep, reports)
        curves = [live_gradient.curves_over(shown, sweep, b)]
        if packages:
            packages[b.key] = parts.with_rows(strip, LiveContent({}, curves), source, b.key)
        else:
            content = replace(content, rows=curves, refused="", said=_study(run, shown, config))
            packages[WHOLE] = parts.with_part(strip, content, sliders, source)
    return packages


def _sweeps(shown: live_gradient.Shown, config: CorrectionConfig) -> list[tuple[Bound, GradientSweep]]:
    sweeps, refused = [], UsageError(gradient_text.NO_BOUND)
    for b in bounds_of(config):
        try:
            sweeps.append((b, sketches.swept(shown.measured, config, b.id)))
        except UsageError as error:
            refused = error
    if not sweeps:
        raise refused
    return sweeps


def _reports(
    shown: live_gradient.Shown, config: CorrectionConfig, b: Bound, sweep: GradientSweep
) -> dict[float, GradientReport]:
    """Return threshold → report, from the tightest to the loosest, with the preset's own threshold among them."""
    reports = dict(zip(sweep.thresholds, sweep.ranking.reports, strict=True))
    reports[b.value] = sketches.reported(shown.measured, config)
    values = sorted((value for value in reports if b.low <= value <= b.high), reverse=b.id.side == "lower")
    return {value: reports[value] for value in values}


def _slider_values(b: Bound, reports: Iterable[float]) -> list[float]:
    return [value if value == b.value else float(f"{value:.{DIGITS}g}") for value in reports]


def _strip(shown: live_gradient.Shown, sweep: GradientSweep, reports: Mapping[float, GradientReport]) -> Package:
    pictures = {"gradient_curves": PictureStrip(shapes=gradients.progress_cursors(sweep, USUAL_BATCH, [*reports]))}
    numbers = [live_gradient.numbers(report, shown.size_index) for report in reports.values()]
    texts = {ANSWER: [live_gradient.answer(shown, report, sweep) for report in reports.values()]}
    return strips.package({}, numbers, texts, pictures)


def _study(run: Path, shown: live_gradient.Shown, config: CorrectionConfig) -> str:
    """Return how training runs with this kind of correction ended under such a mismatch, if a study has both."""
    kind = kind_of(config)
    ended = study_ends.ends(run, kind) if kind else None
    if not (ended and kind):
        return ""
    return on_site(say_study.of_kind(ended, kind, live_gradient.over_nothing(shown, config)), ended)


def ranking_package(run: Path, step: int) -> Package:
    """Return the ranking of all presets by their progress, for every batch size."""
    measured = sketches.sketched(run, step)
    ranking, names = sketches.all_presets(measured), list(RANKED)
    contents = [
        LiveContent(
            {},
            [
                {
                    "ranking": Picture(
                        gradients.ranking_bars(names, ranking, size, titles=live_gradient.row_titles()),
                        gradient_text.RANKING,
                        gradient_text.RANKED,
                    )
                }
            ],
            tables={BEST: inline(live_gradient.best_preset_sentence(measured, choice))},
        )
        for size, choice in zip(sketches.BATCH_SIZES, ranking.choices, strict=True)
    ]
    slider = Slider(
        "answers", gradient_text.BATCH_SIZE, sketches.BATCH_SIZES, USUAL_BATCH, generation=0,
        text=BEST, help=gradient_text.BATCH_SIZE_IS,
    )  # fmt: skip
    usual = contents[sketches.BATCH_SIZES.index(USUAL_BATCH)]
    package = parts.with_part(strips.package_contents(contents), usual, [slider], recorded.source(run, step), resets={})
    (picture,) = package.about["pictures"].values()
    picture["figures"] = [json.dumps(parts.rounded(json.loads(figure))) for figure in picture["figures"]]
    return package
