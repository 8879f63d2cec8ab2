"""Files of the correction bench and of the Mismatch view, and of what a preset has on every run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from components.live_part import ANSWER, LiveContent, Note, Number, Picture
from components.markdown import inline
from data import corrections, recorded
from data.bounds import Bound, bounds_of, slider_values_of, useful_slider_values
from text import mismatch as mismatch_text
from text import published
from text import start as start_text
from text.formatting import number
from views import bench as bench_page
from views import start as start_page

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.triage import triage
from rlcorr.bounds import at_threshold
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.strips.packing import Package
from rlcorr.systems.export import SYSTEMS, exports
from static_site import parts

COUNT, COUNT_OF_OTHERS = 61, 41
"""Numbers of values of a preset's first slider and of its others. Each preset and run has a file per slider."""
COUNT_OF_START = 301
TIGHTEST = 1e-4
"""The tightest threshold of the first page. No answer of its run has a lower k3, so it rejects everything."""
DRAWN = ("TIS", "IcePop", "KPop", "DPPO")
WHOLE = ""
"""Key of the file with the whole bench; other keys are those of bounds."""


def shared_names(presets: Iterable[str], *, on_batch: bool = False) -> dict[str, str]:
    """Return preset → the first of these presets with the same configuration. Both use the files of the first.

    on_batch: the same in what it does to a batch, in weights and rules. The loss may differ.
    """
    first: dict[object, str] = {}
    return {name: first.setdefault(_key(PRESETS[name].config, on_batch=on_batch), name) for name in presets}


def _key(config: CorrectionConfig, *, on_batch: bool) -> object:
    if not on_batch:
        return config
    weights = config.rollout_is_threshold, config.rollout_is_threshold_lower, config.rollout_is_batch_normalize
    return config.rollout_is, config.rollout_is_mode, *weights, config.rollout_rs


def slider_values(b: Bound, *, is_first: bool) -> tuple[float, ...]:
    """Return the values of a bench slider, the same on every run."""
    return slider_values_of(b, b.value, count=COUNT if is_first else COUNT_OF_OTHERS)


def all_values(config: CorrectionConfig) -> list[tuple[Bound, tuple[float, ...]]]:
    """Return each bound of a configuration with the values of its slider."""
    return [(b, slider_values(b, is_first=not index)) for index, b in enumerate(bounds_of(config))]


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
            packages[b.key] = parts.with_rows(strip, _curves(identity, run, step, config, b), source, b.key)
        else:
            sliders = [parts.bound_slider(*one) for one in with_values]
            packages[WHOLE] = parts.with_part(strip, content, sliders, source)
    return packages


def _curves(identity: corrections.Identity, run: Path, step: int, config: CorrectionConfig, b: Bound) -> LiveContent:
    try:
        curves = bench_page.curves_over(identity, recorded.step(run, step).batch, config, b)
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


def start_package(run: Path, step: int) -> Package:
    """Return the moving picture of the first page, as on the app's."""
    record, config = recorded.step(run, step), PRESETS[start_text.PLAYED_PRESET].config
    identity, (b,), batch = corrections.identity(run, step), bounds_of(config), record.batch
    loosest = useful_slider_values([(identity, batch)], config, b, b.value)[-1]
    values = slider_values_of(replace(b, low=TIGHTEST, high=loosest), b.value, COUNT_OF_START)
    content = start_page.start_content(batch, config, start_page.first_answers(record))
    strip = start_page.start_strip(batch, config, b, values)
    plays_to = min(values, key=lambda value: abs(value - start_text.PLAYED_TO))
    slider = replace(parts.bound_slider(b, values, plays_to), label=start_text.MOVING_LABEL)
    return parts.with_part(strip, content, [slider], recorded.source(run, step))


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
    part = parts.part([], LiveContent(numbers, rows), recorded.source(run, step), {})
    return Package({}, {"part": part, "sentences": [symptom.sentence for symptom in symptoms]})
