"""The Gradient view: the progress of a correction's gradient, on a recorded step and exactly on a toy."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

import state
import streamlit as st
from components.links import Link, links
from components.live_part import ANSWER, LiveContent, Number, Picture, live_part
from components.picture import picture
from controls import strips
from controls.choosing import batch_size_slider, buttons, folding
from controls.configuration import bound_sliders, resets, settings
from controls.sharing import with_study_link
from data import sketches, studies, uploads
from data.bounds import Bound, bounds_of, is_first, slider_values_of
from data.configuration import FIRST
from data.names import BETWEEN, preset_title
from data.recorded import SKETCHED_EXAMPLE, Selection
from text import gradient as say
from text import phrases
from text import study_ends as say_study
from text import yours as yours_text
from text.formatting import plain, table

from rlcorr import CorrectionConfig
from rlcorr.bounds import is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.figures.canvas import Figure
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import Choice, Decomposition, GradientReport, units_needed
from rlcorr.gradients.sketch import ExactSketch, sampled_units
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.presets import PRESETS, RANKED
from rlcorr.records import runs
from rlcorr.records.study_ends import kind_of
from rlcorr.strips.packing import Package, PictureStrip

COUNT = 101
"""Number of values of a bound's slider. The gradient is measured at each of them."""


@dataclass(frozen=True)
class Shown:
    """The settings of the pictures, apart from the bounds: a step, the name of the preset, and B."""

    measured: sketches.Sketched
    preset: str
    batch_size: int

    @property
    def size_index(self) -> int:
        """Return the index of the batch size among those that are measured."""
        return sketches.BATCH_SIZES.index(self.batch_size)


def show(selection: Selection) -> None:
    """Show the live part, and below it the choices and the KL losses."""
    if selection.step is None:
        st.info(phrases.NO_STEPS)
        return
    try:
        measured = sketches.sketched(selection.run, selection.step)
    except UsageError as error:
        st.info(plain(str(error)))
        if selection.slug.startswith(uploads.PREFIX):
            bench, run = yours_text.GRADIENT_LINKS
            links(Link(bench, {"view": "bench"}), Link(run, {"run": SKETCHED_EXAMPLE}), key="without_gradient")
        for step in runs.list_sketches(selection.run):
            changes = {"step": str(step)}
            st.button(say.GO.format(step=step), key=f"sketched_{step}", on_click=state.change, kwargs=changes)
        return
    if isinstance(measured.sketch, ExactSketch) and (little := say.little_covered(measured.sketch.answers.coverage)):
        st.warning(plain(little))
    if PRESETS[state.get("preset")].loss.score_centering:
        st.caption(phrases.CENTERED_GRADIENT)
    above = st.container()
    config = settings()
    with above:
        _live(measured, selection, config)
    st.caption(say.measured_on(measured.batch, measured.sketch))
    if isinstance(measured.sketch, ExactSketch) and measured.sketch.finite_population_factor:
        st.caption(say.of_these_prompts(sketches.reported(measured, CorrectionConfig()).reference_noise))
    _kl(measured, selection.source)


def _live(measured: sketches.Sketched, selection: Selection, config: CorrectionConfig) -> None:
    """Show what changes with a bound or with the batch size, and the toy below it."""
    name, size = state.get("preset"), state.get("answers")
    shown = Shown(measured, name, size)

    def of_size(size: int) -> LiveContent:
        return gradient(replace(shown, batch_size=size), config)

    sliders = bound_sliders(
        config,
        strip=strips.of_bounds((measured.identity, name, size), partial(bound_strip, shown)),
        slider_values=partial(_slider_values, shown, config),
    )
    sliders.append(
        batch_size_slider(
            strip_key=repr((measured.identity, name, config)),
            strip=lambda: strips.package_contents([of_size(size) for size in sketches.BATCH_SIZES]),
        )
    )
    content, refused = strips.content_of(partial(gradient, shown), config)
    kind, said = kind_of(config), ""
    if kind and (ended := studies.ends(selection.run, kind)):
        said = with_study_link(say_study.of_kind(ended, kind, over_nothing(shown, config)), ended.name)
    live_part(sliders, replace(content, said=said), source=selection.source, resets=resets(FIRST))
    if refused:
        st.warning(plain(refused))
        return
    # The toy is computed only if its box is open. A picture drawn in a closed box would have the wrong width, too.
    box = folding("toy", say.TOY_FOLDED)
    if state.get("toy") and bounds_of(config):
        with box:
            _toy(shown, config, selection.source)


def _toy(shown: Shown, config: CorrectionConfig, source: str) -> None:
    (b, *_), source = bounds_of(config), say.TOY_SOURCE.format(source=source)
    try:
        thresholds = sketches.swept(shown.measured, config, b.id).thresholds
    except UsageError as error:  # every ratio is 1
        st.info(plain(str(error)))
        return
    exact = sketches.toy(shown.measured, config, b.id, thresholds, shown.batch_size)
    figure = gradients.exact_curves(exact, of_ratio=is_ratio(config, b.id), at=b.value)
    caption = say.TOY.format(gap=shown.measured.gap, size=shown.batch_size)
    picture(say.TOY_TITLE, figure, key="toy_curves", caption=caption, source=source)


def _kl(measured: sketches.Sketched, source: str) -> None:
    st.markdown(say.KL_TITLE)
    st.markdown(say.KL_ADVICE)
    picked = buttons("kl_target", say.KL_TARGET, list(say.TARGETS))
    target = say.TARGETS[picked]
    tokens = measured.sketch.next_tokens
    recorded = {} if tokens is None else {"ref": tokens.ref_log_probs, "rollout": tokens.rollout_log_probs}
    if tokens is None or recorded[target] is None:
        st.info(plain(say.NO_DISTRIBUTION.format(target=picked)))
        return
    reports = sketches.kl_losses(measured, tokens, target)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        caption = say.KL.format(count=len(tokens.log_probs))
        picture(say.KL_DIRECTION, gradients.kl_directions(reports), key="kl", caption=caption, source=source)
    with right:
        rows = [[name, _range(loss.cosine), _range(loss.length), _range(loss.noise)] for name, loss in reports.items()]
        st.html(table(["loss", *say.KL_NUMBERS], rows, say.KL_NUMBERS))


def _range(interval: Interval) -> str:
    return f"{say.short(interval.value)} ({say.short(interval.low)}\u00a0to\u00a0{say.short(interval.high)})"


# --- the live part ---


def gradient(shown: Shown, config: CorrectionConfig) -> LiveContent:
    """Return the content of the Gradient view.

    Raises `UsageError` if the step's gradient cannot be distinguished from noise, or if the loss has none per token.
    """
    report = sketches.reported(shown.measured, config)
    if report.reference_length.value == 0:
        raise UsageError(say.NOISE_REFERENCE)
    ranking, titles = sketches.all_presets(shown.measured), {name: preset_title(name) for name in RANKED}
    reports = dict(zip(RANKED, ranking.reports, strict=True))
    plane = gradients.bias_noise_plane(reports, shown.batch_size, titles=titles, marked=shown.preset, shown=report)
    below = {
        "plane": Picture(plane, say.PLANE_TITLE, say.PLANE.format(size=shown.batch_size)),
        "parts": Picture(_parts(sketches.decomposed(shown.measured, config)), say.PARTS_TITLE, say.DECOMPOSED),
    }
    curves, sweep, refused = {}, None, say.NO_BOUND
    for b in bounds_of(config)[:1]:
        try:
            sweep, refused = sketches.swept(shown.measured, config, b.id), ""
            curves = curves_over(shown, sweep, b)
        except UsageError as error:
            refused = str(error)
    if len(curves) == 1:  # two pictures side by side
        curves["plane"] = below.pop("plane")
    bars = gradients.ranking_bars(
        list(RANKED), ranking, shown.batch_size, titles=row_titles(), marked=shown.preset, shown=report
    )
    best = best_preset_sentence(shown.measured, ranking.choices[shown.size_index])
    ranked = {"ranking": Picture(bars, say.RANKING, f"{say.RANKED} {say.MARKED}", above=best)}
    rows = [row for row in (curves, below, ranked) if row]
    return LiveContent(numbers(report, shown.size_index), rows, refused, texts={ANSWER: answer(shown, report, sweep)})


def answer(shown: Shown, report: GradientReport, sweep: GradientSweep | None) -> str:
    """Return sentences about the progress of a step and, if there is a sweep, about the best threshold.

    If the data do not show which threshold is best, this is the only sentence.
    """
    gains = say.gains(report.progress[shown.size_index], shown.batch_size)
    if sweep is None:
        return gains
    if not sweep.shows_best(shown.size_index):
        return _cannot_tell(shown.measured, sweep.ranking.choices[shown.size_index], "threshold")
    return gains + say.best_between(sweep.best[shown.size_index], of_ratio=sweep.of_ratio)


def over_nothing(shown: Shown, config: CorrectionConfig) -> Interval | None:
    """Return the progress of the best threshold minus that of no correction; None without a threshold to move."""
    for b in bounds_of(config)[:1]:
        with suppress(UsageError):  # every ratio is 1
            return sketches.swept(shown.measured, config, b.id).ranking.choices[shown.size_index].over_nothing
    return None


def _cannot_tell(measured: sketches.Sketched, choice: Choice, what: str) -> str:
    units = sampled_units(measured.batch, measured.sketch)
    return say.cannot_tell(what, choice.over_nothing, units, units_needed(units.count, choice.over_nothing))


def numbers(report: GradientReport, size_index: int) -> dict[str, Number]:
    """Return the headline numbers for the batch size with this index."""
    shown = (
        report.progress[size_index], report.relative_bias, report.noise[size_index],
        report.cosine, report.scale, report.ess,
    )  # fmt: skip
    return {
        label: Number(say.short(interval.value), help, say.ends(interval))
        for (label, help), interval in zip(say.NUMBERS.items(), shown, strict=True)
    }


def curves_over(shown: Shown, sweep: GradientSweep, b: Bound) -> dict[str, Picture]:
    """Return the curve over the threshold, and the best threshold over the batch size if any size shows one."""
    size, choice = shown.batch_size, sweep.ranking.choices[shown.size_index]
    caption = say.CURVE
    if sweep.shows_best(shown.size_index):
        caption += f" {say.CURVE_BEST} {lead_sentence(shown.measured, choice.over_nothing, say.NO_CORRECTION)}"
    curve = gradients.progress_curves(sweep, size, at=b.value)
    pictures = {"gradient_curves": Picture(curve, say.CURVE_TITLE, caption)}
    if any(sweep.shows_best(index) for index in range(len(sweep.best))):
        best = gradients.best_thresholds(sweep, batch_size=size)
        pictures["best_bounds"] = Picture(best, say.BEST_THRESHOLDS_TITLE, say.BEST_THRESHOLDS)
    return pictures


@cache
def row_titles() -> dict[str, str]:
    """Return title and system of each ranked preset, or title and name if a preset of its system has the same title."""
    labels = {name: BETWEEN.join((preset_title(name), PRESETS[name].system)) for name in RANKED}
    counts = Counter(labels.values())
    return {
        name: label if counts[label] == 1 else BETWEEN.join((preset_title(name), name))
        for name, label in labels.items()
    }


def best_preset_sentence(measured: sketches.Sketched, choice: Choice) -> str:
    """Return, in Markdown, which preset makes the most progress, and how far it is ahead; or that this is unknown."""
    names = [plain(title) for title in row_titles().values()]
    if not choice.over_nothing.tells:
        sentence = _cannot_tell(measured, choice, "preset")
        return f"With {choice.batch_size:,} answers in a batch, {sentence[0].lower()}{sentence[1:]}"
    second = [index for group in choice.groups for index in group][1]
    over_next = lead_sentence(measured, choice.over_next, say.NEXT_PRESET.format(name=names[second]))
    over_nothing = lead_sentence(measured, choice.over_nothing, say.NO_CORRECTION)
    return f"{say.best_preset(choice, names)} {over_next} {over_nothing}"


def lead_sentence(measured: sketches.Sketched, paired: Interval, other: str) -> str:
    """Return by how much the best is ahead of another, or how many more samples would show a difference."""
    units = sampled_units(measured.batch, measured.sketch)
    return say.lead(paired, other, units, units_needed(units.count, paired))


def _parts(bias: Decomposition) -> Figure:
    parts = (bias.level, bias.truncation, bias.rejection, bias.denominator)
    return gradients.parts_of_bias(dict(zip(say.PARTS, parts, strict=True)))


def _slider_values(shown: Shown, config: CorrectionConfig, b: Bound, value: float) -> strips.Values:
    """Return the values of the bound's slider, over the range in which the gradient changes if that is known."""
    with suppress(UsageError):  # every token has the same ratio
        low, high = sketches.moving_range(shown.measured, config, b.id)
        return slider_values_of(replace(b, low=max(low, b.low), high=min(high, b.high)), value, count=COUNT)
    return slider_values_of(b, value, count=COUNT)


def bound_strip(shown: Shown, config: CorrectionConfig, b: Bound, slider_values: strips.Values) -> Package:
    """Return what changes in `gradient`, for every value of the slider of this bound."""
    measurements = sketches.measured_at(shown.measured, config, b.id, slider_values)
    reports, size = [report for report, _ in measurements], shown.batch_size
    shapes = gradients.ranking_shapes(sketches.all_presets(shown.measured), size, reports)
    pictures = {
        "ranking": PictureStrip(shapes=shapes),
        "plane": PictureStrip(shapes=[gradients.bias_noise_cross(report, size) for report in reports]),
        "parts": PictureStrip(figures=[str(_parts(bias).to_json()) for _, bias in measurements]),
    }
    sweep = None
    if is_first(b, config):
        with suppress(UsageError):  # every ratio is 1; the page says so instead of showing the curve
            sweep = sketches.swept(shown.measured, config, b.id)
            pictures["gradient_curves"] = PictureStrip(shapes=gradients.progress_cursors(sweep, size, slider_values))
    texts = {ANSWER: [answer(shown, report, sweep) for report in reports]}
    return strips.package({}, [numbers(report, shown.size_index) for report in reports], texts, pictures)
