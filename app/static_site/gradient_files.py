"""Files of the gradient view: the curve over a preset's first bound, and the ranking of all presets."""

import json
from dataclasses import replace
from pathlib import Path

from components.live_part import ANSWER, LiveContent, Picture, Slider
from components.markdown import inline
from controls import batch_size
from controls.bounds import bounds_of
from data import recorded, sketches, study_ends
from live import gradient as live_gradient
from live import strips
from text import gradient as gradient_text
from text import study_ends as say_study

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.figures import gradients
from rlcorr.presets import RANKED
from rlcorr.records.study_ends import kind_of
from rlcorr.strips.packing import Package, PictureStrip
from static_site import parts
from static_site.study_files import on_site

BEST = "best"


def gradient_package(run: Path, step: int, preset: str) -> Package:
    """Return the curve over the first bound for one batch size. The slider has the thresholds that were measured."""
    config = PRESETS[preset].config
    b = bounds_of(config)[0]
    shown = live_gradient.Shown(sketches.sketched(run, step), preset, batch_size.USUAL)
    content = live_gradient.gradient(shown, config)
    sweep = sketches.swept(shown.measured, config, b.id)
    reports = dict(zip(sweep.thresholds, sweep.ranking.reports, strict=True))
    reports[b.value] = sketches.reported(shown.measured, config)
    values = sorted((value for value in reports if b.low <= value <= b.high), reverse=b.id.side == "lower")
    pictures = {"gradient_curves": PictureStrip(shapes=gradients.progress_cursors(sweep, batch_size.USUAL, values))}
    numbers = [live_gradient.numbers(reports[value], shown.size_index) for value in values]
    texts = {ANSWER: [live_gradient.answer(shown, reports[value], sweep) for value in values]}
    strip = strips.package({}, numbers, texts, pictures)
    pictures = {key: shown for key, shown in content.rows[0].items() if key != "plane"}  # nothing moves it here
    content = replace(content, rows=[pictures], said=_study(run, shown, config))
    return parts.with_part(strip, content, [parts.bound_slider(b, values)], recorded.source(run, step))


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
                        gradients.ranking_bars(names, ranking, size), gradient_text.RANKING, gradient_text.RANKED
                    )
                }
            ],
            tables={BEST: inline(live_gradient.best_preset_sentence(measured, choice))},
        )
        for size, choice in zip(sketches.BATCH_SIZES, ranking.choices, strict=True)
    ]
    slider = Slider(
        batch_size.KEY, gradient_text.BATCH_SIZE, sketches.BATCH_SIZES, batch_size.USUAL, generation=0, address=None,
        strip=None, text=BEST, help=gradient_text.BATCH_SIZE_IS,
    )  # fmt: skip
    usual = contents[sketches.BATCH_SIZES.index(batch_size.USUAL)]
    package = parts.with_part(strips.package_contents(contents), usual, [slider], recorded.source(run, step), resets={})
    (picture,) = package.about["pictures"].values()
    picture["figures"] = [json.dumps(parts.rounded(json.loads(figure))) for figure in picture["figures"]]
    return package
