"""Packages of the static site: the same live parts as in the app, each with its strip.

Figures have as many digits as a screen shows, because the site has a thousand of them.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from components.live_part import ANSWER, LiveContent, Note, Number, Picture, Slider, part_data
from components.markdown import inline
from controls import batch_size
from controls.bounds import bounds_of, slider_values_of
from data import corrections, recorded, sketches, studies
from live import bench as live_bench
from live import gradient as live_gradient
from live import strips
from state.fields import Bound
from text import gradient as gradient_text
from text import mismatch as mismatch_text
from text import phrases
from text import training as training_text
from text.formatting import number, table

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.triage import triage
from rlcorr.bounds import at_threshold
from rlcorr.figures import gradients, mismatch
from rlcorr.figures.study import differences
from rlcorr.presets import RANKED
from rlcorr.records.study import SeedRange
from rlcorr.strips.packing import Package, PictureStrip
from rlcorr.systems.export import SYSTEMS, exports

COUNT = 121
"""Number of values of a bench slider. On a line of a thousand pixels the thumb moves by eight pixels per value."""
DIGITS = 4
"""Significant digits of the numbers in figures."""
RESETS = {"": phrases.RESET}
BEST = "best"
DRAWN = ("TIS", "IcePop", "KPop", "DPPO")


def with_a_bound() -> dict[str, Bound]:
    """Return preset → its first bound, for the presets that have one."""
    return {name: bounds_of(entry.config)[0] for name, entry in PRESETS.items() if bounds_of(entry.config)}


def shared_names(presets: Iterable[str]) -> dict[str, str]:
    """Return preset → the first of these presets with the same configuration. Both use the files of the first."""
    first: dict[CorrectionConfig, str] = {}
    return {name: first.setdefault(PRESETS[name].config, name) for name in presets}


def hurts(preset: str) -> str:
    """Return, as HTML, when a preset fails, with its source."""
    return inline(live_bench.when_it_hurts(PRESETS[preset]))


def slider_values(b: Bound) -> tuple[float, ...]:
    return slider_values_of(b, b.value, count=COUNT)


def bench_package(run: Path, step: int, preset: str) -> Package:
    """Return the bench of this step with its strip. Raises `UsageError` if the correction does."""
    batch, config, b = recorded.step(run, step).batch, PRESETS[preset].config, with_a_bound()[preset]
    identity, values = corrections.identity(run, step), slider_values(b)
    content = live_bench.bench(identity, batch, config, PRESETS[preset])
    strip = live_bench.bench_strip(identity, batch, config, b, values)
    return _with_part(strip, content, _bound_slider(b, values), recorded.source(run, step))


def gradient_package(run: Path, step: int, preset: str) -> Package:
    """Return the curve over the bound for one batch size. The slider has the thresholds that were measured."""
    config, b = PRESETS[preset].config, with_a_bound()[preset]
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
    content = replace(content, rows=[pictures])
    return _with_part(strip, content, _bound_slider(b, values), recorded.source(run, step))


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
    package = _with_part(strips.package_contents(contents), usual, slider, recorded.source(run, step), resets={})
    (picture,) = package.about["pictures"].values()
    picture["figures"] = [json.dumps(rounded(json.loads(figure))) for figure in picture["figures"]]
    return package


def _bound_slider(b: Bound, values: Sequence[float]) -> Slider:
    return Slider("bound", b.label, values, b.value, generation=0, address=None, strip=None, help=b.help)


def _with_part(
    strip: Package, content: LiveContent, slider: Slider, source: str, resets: Mapping[str, str] = RESETS
) -> Package:
    about = {**strip.about, "shapes": rounded(strip.about["shapes"]), "part": _part([slider], content, source, resets)}
    return Package(strip.arrays, about)


def _part(sliders: Sequence[Slider], content: LiveContent, source: str, resets: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of a live part as in the app, except that figures are rounded, and objects instead of texts.

    Parts of objects can be shared with other files.
    """
    part = part_data(sliders, content, source, resets)
    rows = [[picture | {"figure": rounded(json.loads(picture["figure"]))} for picture in row] for row in part["rows"]]
    return part | {"rows": rows}


def rounded(node: Any) -> Any:
    """Round the numbers of a figure, or of a part of one, and replace the bytes of floats by lists of numbers."""
    if isinstance(node, list):
        return [rounded(part) for part in node]
    if not isinstance(node, dict):
        return float(f"{node:.{DIGITS}g}") if isinstance(node, float) else node
    if "bdata" in node and node["dtype"] in ("f4", "f8") and "shape" not in node:
        values = np.frombuffer(base64.b64decode(node["bdata"]), f"<{node['dtype']}").tolist()
        return [None if value != value else float(f"{value:.{DIGITS}g}") for value in values]
    return {key: rounded(part) for key, part in node.items()}


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
    below = {
        "tail": mismatch.tail(batch),
        "position": mismatch.by_position(batch),
        "length": mismatch.by_length(batch, SEQUENCE_METHODS),
    }
    rows = [
        {
            "acceptance": Picture(
                mismatch.acceptance(batch, methods), mismatch_text.ACCEPTANCE_TITLE, mismatch_text.ACCEPTANCE
            ),
            "magnified": Picture(
                mismatch.acceptance(batch, methods, magnified=True),
                mismatch_text.MAGNIFIED_TITLE,
                mismatch_text.MAGNIFIED,
            ),
        },
        {key: Picture(figure, *mismatch_text.PICTURES[key]) for key, figure in below.items()},
    ]
    part = _part([], LiveContent(numbers, rows), recorded.source(run, step), {})
    return Package({}, {"part": part, "sentences": [symptom.sentence for symptom in symptoms]})


def study_package(name: str) -> Package:
    """Return the outcomes of a study. Raises `UsageError` if it has not been trained."""
    result, study = studies.table(name), studies.all_studies()[name]
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    pictures = {}
    for against, compared in pairs.items():
        title, caption = training_text.AGAINST[against]
        if compared:
            pictures[against] = Picture(differences(compared), title, caption.format(count=len(compared)))
    rows = [
        [o.preset, _seeds(o.reward), _seeds(o.best_reward), f"{o.k3.mean:.1g}", _seeds(o.kept_fraction)]
        for o in result.outcomes
    ]
    content = LiveContent(
        numbers={}, rows=[pictures] if pictures else [], notes=[Note(training_text.OUTCOMES, "outcomes")],
        tables={"outcomes": table(training_text.OUTCOME_COLUMNS, rows)},
    )  # fmt: skip
    return Package({}, {"part": _part([], content, result.source, {}), "sentences": [study.story, study.look]})


def _seeds(seeds: SeedRange) -> str:
    return f"{seeds.mean:.2f} [{seeds.lowest:.2f},\u00a0{seeds.highest:.2f}]"


def exported(preset: str) -> Package:
    """Return, for each system, the lines of the text to export.

    A line that depends on the slider is a list with one text per slider value.
    """
    entry, b = PRESETS[preset], with_a_bound()[preset]
    texts = [exports(at_threshold(entry.config, value, b.id), entry.loss) for value in slider_values(b)]
    systems = {}
    for title in SYSTEMS:
        lines_of_texts = [text[title].split("\n") for text in texts]
        most = max(map(len, lines_of_texts))
        lines = list(zip(*([*lines, *[""] * (most - len(lines))] for lines in lines_of_texts), strict=True))
        systems[title] = [line[0] if len({*line}) == 1 else line for line in lines]
    return Package({}, {"systems": systems})
