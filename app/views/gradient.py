"""The Gradient view: the progress of a correction's gradient on a recorded step, and what training said."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import state
import streamlit as st
from components.links import Link, links
from components.live_part import ANSWER, LiveContent, Number, live_part
from components.picture import Picture
from controls import strips
from controls.configuration import bound_sliders, resets, settings
from controls.sharing import with_study_link
from controls.widgets import batch_size_slider
from data import sketches, studies, uploads
from data.bounds import Bound, bounds_of, is_first, slider_values_of
from data.configuration import FIRST
from data.names import BETWEEN, preset_title
from data.recorded import SKETCHED_EXAMPLE, Selection
from text import phrases
from text import study_ends as say_study
from text.formatting import interval_ends, percent, plain, short

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientReport, units_needed
from rlcorr.gradients.sketch import ExactSketch, SampledSketch, SampledUnits, Sketch, sampled_units
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.presets import PRESETS, RANKED
from rlcorr.records import runs
from rlcorr.records.study_ends import StudyEnds, kind_of
from rlcorr.strips.packing import Package, PictureStrip

NO_BOUND = "This configuration has no threshold to move."
COUNT, ROWS = 101, 10
"""Number of values of a bound's slider, at each of which the gradient is measured, and of rows of the short ranking."""
DEFAULTS = ("disabled", "trl_sequence_mask", "skyrl_token_tis")
"""Rows that the ranking always has: no correction, which is verl's default, TRL's default, and SkyRL's first method."""
NUMBERS = {
    "Progress (η)": "What one step of the best length along this gradient gains, as a share of what it gains along the "
    "exact gradient, with B answers in a batch: ⟨E g, g*⟩²/(‖g*‖² (‖E g‖² + V/B)), between 0 and 1. It ignores Adam, "
    "gradient clipping, and the combined effect of many steps.",
    "Bias": "‖E[g] − on-policy gradient‖ divided by the length of the on-policy gradient. If the interval contains 0, "
    "it may be noise.",
    "Noise": "Standard deviation of the gradient over batches of B answers, divided by the length of the on-policy "
    "gradient.",
    "Cosine": "Cosine between the expected gradient and the on-policy gradient.",
    "Step length": "The correction multiplies the step along the on-policy gradient by this factor.",
    "ESS of answers": "Effective sample size: (Σ w)²/Σ w² over the answers, as a share of the answers.",
}
NOISE_REFERENCE = (
    "The on-policy gradient of this step cannot be distinguished from noise, so nothing can be measured in units of "
    "it. Record more answers with --prompts-per-step."
)
CURVE = (
    "Progress over the first threshold, with a 95 % band. Dotted: the present value; you can drag this line. Grey "
    "line: no correction."
)
CURVE_BEST = (
    " Dashed: the threshold with the most progress. Grey background: the best threshold is here in 95 % of the "
    "bootstrap samples."
)


@dataclass(frozen=True)
class Shown:
    """The settings of the pictures, apart from the bounds: a step, the name of the preset, and B."""

    run: Path
    measured: sketches.Sketched
    preset: str
    batch_size: int

    @property
    def size_index(self) -> int:
        """Return the index of the batch size among those that are measured."""
        return sketches.BATCH_SIZES.index(self.batch_size)


def show(selection: Selection) -> None:
    """Show the live part, and below it the choices."""
    if selection.step is None:
        st.info(phrases.NO_STEPS)
        return
    try:
        measured = sketches.sketched(selection.run, selection.step)
    except UsageError as error:
        st.info(plain(str(error)))
        if selection.slug.startswith(uploads.PREFIX):
            recorded = Link("Open a recorded run", {"run": SKETCHED_EXAMPLE})
            links(Link("Open the bench", {"view": "bench"}), recorded, key="without_gradient")
        for step in runs.list_sketches(selection.run):
            changes = {"step": str(step)}
            st.button(f"Show step {step}", key=f"sketched_{step}", on_click=state.change, kwargs=changes)
        return
    if isinstance(measured.sketch, ExactSketch) and (little := little_covered(measured.sketch.answers.coverage)):
        st.warning(plain(little))
    if PRESETS[state.get("preset")].loss.score_centering:
        st.caption("`python -m rlcorr gradients RUN --score-centering` measures it on steps with every likely answer.")
    above = st.container()
    config = settings()
    with above:
        _live(measured, selection, config)
    st.caption(measured_on(measured.batch, measured.sketch))


def _live(measured: sketches.Sketched, selection: Selection, config: CorrectionConfig) -> None:
    """Show what changes with a bound or with the batch size."""
    name, size = state.get("preset"), state.get("answers")
    shown = Shown(selection.run, measured, name, size)

    def of_size(size: int) -> LiveContent:
        return gradient(replace(shown, batch_size=size), config)

    values = partial(_slider_values, shown, config)
    sliders = bound_sliders(config, (measured.identity, name, size), partial(bound_strip, shown), values)
    sliders.append(
        batch_size_slider(
            repr((measured.identity, name, config)),
            lambda: strips.package_contents([of_size(size) for size in sketches.BATCH_SIZES]),
        )
    )
    content, refused = strips.content_of(partial(gradient, shown), config)
    said = "" if refused else f"{study_said(shown, config, with_study_link)} {best_preset(shown, ranked(shown))}"
    live_part(sliders, replace(content, said=said), source=selection.source, resets=resets(FIRST))
    if refused:
        st.warning(plain(refused))


def measured_on(batch: TokenBatch, sketch: Sketch) -> str:
    """Return a sentence about the answers and prompts that the numbers are measured on."""
    if isinstance(sketch, SampledSketch):
        measured, of = f"Measured on {len(batch.response_mask):,} sampled answers", ""
        if sketch.reference is not None:
            count = int(sketch.reference.sequences.sum())
            of = f", the on-policy gradient on {count:,} others, which the trained weights sampled"
        return f"{measured}{of}. The 95 % are over the answers and over projections of their scores."
    what = "the prompts and over " if sketch.finite_population_factor else ""
    count, (old, rollout) = sketch.answers.prompt_count, _covered(sketch.answers.coverage)
    return (
        f"Measured on all likely answers to {count:,} prompts, which cover {old} of the probability in the trainer and "
        f"{rollout} in the sampler. The 95 % are over {what}projections of the scores."
    )


def little_covered(coverage: dict[str, float]) -> str:
    """Return a warning if the measured answers cover little of the probability; else an empty text."""
    if min(coverage.values()) >= ENOUGH_COVERED:
        return ""
    old, rollout = _covered(coverage)
    return (
        f"The measured answers have only {old} of the probability in the trainer and {rollout} in the sampler. Every "
        "number here lacks the part of the other answers."
    )


def _covered(coverage: dict[str, float]) -> tuple[str, str]:
    return percent(coverage["old"]), percent(coverage["rollout"])


# --- the live part ---


def gradient(shown: Shown, config: CorrectionConfig) -> LiveContent:
    """Return the content of the Gradient view.

    Raises `UsageError` if the step's gradient cannot be distinguished from noise, or if the loss has none per token.
    """
    report = sketches.reported(shown.measured, config)
    if report.reference_length.value == 0:
        raise UsageError(NOISE_REFERENCE)
    curves, sweep, refused = {}, None, NO_BOUND
    for b in bounds_of(config)[:1]:
        try:
            sweep, refused = sketches.swept(shown.measured, config, b.id), ""
            curves = curves_over(shown, sweep, b)
        except UsageError as error:
            refused = str(error)
    # What is said above the bars on the site is part of `study_said` here, so that both pictures begin at one height.
    bars = replace(ranking_of(shown, report.progress[shown.size_index]), above="")
    row = curves | {"ranking": bars}
    texts = {ANSWER: answer(shown, config, report, sweep)}
    return LiveContent(numbers(report, shown.size_index), [row], refused, texts=texts)


def answer(shown: Shown, config: CorrectionConfig, report: GradientReport, sweep: GradientSweep | None) -> str:
    """Return sentences about the best threshold, if there is a sweep, and about the progress of a step.

    If the data do not show which threshold is best, this is the only sentence.
    """
    progress, size = report.progress[shown.size_index], shown.batch_size
    value, low, high = (_share(share) for share in (progress.value, progress.low, progress.high))
    if sweep is None:
        return f"A step on {size:,} answers makes {value} % of the progress of a perfect step ({low} to {high} %)."
    choice = sweep.ranking.choices[shown.size_index]
    if not sweep.shows_best(shown.size_index):
        return _cannot_tell(shown, choice.over_nothing, "threshold")
    best = _share(sweep.ranking.reports[choice.best].progress[shown.size_index].value)
    what = "A cap" if config.rollout_is is not None and config.rollout_is_mode == "truncate" else "A threshold"
    ends = sweep.best[shown.size_index]
    first, last = (threshold(end, of_ratio=sweep.of_ratio) for end in (ends.low, ends.high))
    return (
        f"{what} between {first} and {last} gives the best step, and still only {best} % of a perfect one. "
        f"This one makes {value} % ({low} to {high} %)."
    )


def threshold(value: float, *, of_ratio: bool) -> str:
    """Format a threshold with two significant digits; the threshold of a ratio near 1 with two of its distance from 1.

    >>> [threshold(x, of_ratio=True) for x in (0.023456, 0.9991234, 1.002345, 1.97, 12345.0)]
    ['0.023', '0.99912', '1.0023', '2', '12000']
    """
    if of_ratio and 0.5 < value < 1.5:
        return f"{1 + float(f'{value - 1:.2g}'):.12g}"
    return f"{float(f'{value:.2g}'):g}"


def _share(x: float) -> str:
    """Format a share in percent, without decimals unless it is below 1 %; return a dash for NaN."""
    if x != x:
        return "–"
    return f"{100 * x:.0f}" if x >= 0.01 or abs(x) < 5e-5 else f"{100 * x:.1g}"


def over_nothing(shown: Shown, config: CorrectionConfig) -> Interval | None:
    """Return the progress of the best threshold minus that of no correction; None without a threshold to move."""
    for b in bounds_of(config)[:1]:
        with suppress(UsageError):  # every ratio is 1
            return sketches.swept(shown.measured, config, b.id).ranking.choices[shown.size_index].over_nothing
    return None


def _cannot_tell(shown: Shown, over_nothing: Interval, what: str) -> str:
    """Return why the data show no best threshold, or no best preset; `over_nothing` is the best minus no correction."""
    units = sampled_units(shown.measured.batch, shown.measured.sketch)
    unknown = f"These {units.count:,} {units.kind} cannot tell which {what} is best"
    if over_nothing.tells:
        return f"{unknown}. They tell that some are better than none."
    needed = units_needed(units.count, over_nothing)
    more = "" if needed is None else f" That would take {_rounded(needed, units.count)}."
    return f"{unknown}, or whether any is better than no correction.{more}"


def _rounded(needed: int, units: int) -> str:
    if needed < 1.1 * units:
        return "a few more"
    return f"about {float(f'{needed:.2g}'):,.0f}" if needed < 10**6 else "more than a million"


def numbers(report: GradientReport, size_index: int) -> dict[str, Number]:
    """Return the headline numbers for the batch size with this index."""
    shown = (
        report.progress[size_index], report.relative_bias, report.noise[size_index],
        report.cosine, report.scale, report.ess,
    )  # fmt: skip
    return {
        label: Number(short(interval.value), help, interval_ends(interval))
        for (label, help), interval in zip(NUMBERS.items(), shown, strict=True)
    }


def curves_over(shown: Shown, sweep: GradientSweep, b: Bound) -> dict[str, Picture]:
    """Return the curve over the threshold."""
    caption = CURVE + (CURVE_BEST if sweep.shows_best(shown.size_index) else "")
    curve = gradients.progress_curves(sweep, shown.batch_size, at=b.value)
    choice = sweep.ranking.choices[shown.size_index]
    none = sweep.ranking.reports[choice.best].progress[shown.size_index].value - choice.over_nothing.value
    label = {"text": "no correction", "xref": "paper", "x": 1, "xanchor": "right", "y": none, "yanchor": "bottom"}
    curve.update_layout(annotations=[label | {"showarrow": False}], showlegend=False)
    curve.update_layout({"yaxis.rangemode": "normal", "margin.t": 8})
    return {"gradient_curves": Picture(curve, "Progress of this step at each threshold", caption)}


# --- the ranking ---


@cache
def row_titles() -> dict[str, str]:
    """Return title and system of each ranked preset, or title and name if a preset of its system has the same title."""
    labels = {name: BETWEEN.join((preset_title(name), PRESETS[name].system)) for name in RANKED}
    counts = Counter(labels.values())
    return {
        name: label if counts[label] == 1 else BETWEEN.join((preset_title(name), name))
        for name, label in labels.items()
    }


@dataclass(frozen=True)
class Ranked:
    """All presets by the progress of their steps."""

    progress: dict[str, Interval]
    """Preset → progress, the best first, but those of `against` last."""
    against: frozenset[str]
    """The presets whose step is better than that of no correction, and whose kind ended below it in training."""
    ended: StudyEnds | None
    """The training runs under such a mismatch."""


def ranked(shown: Shown) -> Ranked:
    """Rank all presets, at the batch size that is shown."""
    ranking, ended, names = sketches.all_presets(shown.measured), studies.widest_ends(shown.run), list(RANKED)
    choice = ranking.choices[shown.size_index]
    order, is_told = [names[index] for group in choice.groups for index in group], choice.over_nothing.tells
    progress = {name: ranking.reports[names.index(name)].progress[shown.size_index] for name in order}
    better = [name for name, one in progress.items() if is_told and one.value > progress["disabled"].value]
    against = frozenset(name for name in better if ended and say_study.is_contradicted(ended, kind_of_preset(name)))
    return Ranked({name: progress[name] for name in sorted(order, key=against.__contains__)}, against, ended)


def ranking_of(shown: Shown, at: Interval | None = None) -> Picture:
    """Return the bars of a few presets. `at` is the progress with the present thresholds."""
    of_all = ranked(shown)
    chosen = _chosen(shown, of_all)
    rows, trained = {name: one for name, one in of_all.progress.items() if name in chosen}, {}
    if of_all.ended is not None:
        kinds = [(name, kind_of_preset(name)) for name in rows]
        trained = {n: say_study.ended_at(of_all.ended, k) for n, k in kinds if k and k in of_all.ended.by_kind}
    bars = gradients.ranking_bars(
        rows, row_titles(), marked=shown.preset, trained=trained, against=of_all.against, shown=at
    )
    caption = "With 95 % bars."
    if at:
        caption += " Orange: your preset with its own numbers; the line and its band: with the present thresholds."
    if of_all.ended:
        caption += f" At the right: where training runs with such a correction ended (study {of_all.ended.name})."
    if of_all.against:
        caption += " Red and last: they ended below no correction, although their step is better."
    return Picture(bars, "Presets by the progress of one step", caption, best_preset(shown, of_all))


def _chosen(shown: Shown, of_all: Ranked) -> list[str]:
    """Return the presets of a short ranking: yours, the defaults, the best, and the best of each kind of correction."""
    kinds: dict[str | None, str] = {}
    for name in of_all.progress:
        kinds.setdefault(kind_of_preset(name), name)
    against = [name for name in of_all.progress if name in of_all.against][:2]
    first = (shown.preset, *DEFAULTS, *list(of_all.progress)[:2], *against)
    return list(filter(None, dict.fromkeys((*first, *kinds.values(), *of_all.progress))))[:ROWS]


def kind_of_preset(name: str) -> str | None:
    """Return the kind of a preset. A rule that rejects whole answers does that whatever the loss is."""
    config = PRESETS[name].config
    if any(rule.level == "sequence" for rule in config.rollout_rs):
        config = replace(config, bypass_mode=False, loss_type=CorrectionConfig().loss_type)
    return kind_of(config)


def best_preset(shown: Shown, of_all: Ranked) -> str:
    """Return, in Markdown, which preset makes the most progress of those that training does not contradict."""
    choice, titles = sketches.all_presets(shown.measured).choices[shown.size_index], row_titles()
    if not choice.over_nothing.tells:
        unknown = _cannot_tell(shown, choice.over_nothing, "preset")
        return f"With {shown.batch_size:,} answers in a batch, {unknown[0].lower()}{unknown[1:]}"
    first, second, *_ = of_all.progress
    progress = of_all.progress[first]
    eta = f"{short(progress.value)} ({interval_ends(progress)})"
    said = f"**{plain(titles[first])}** makes the most progress: η is {eta}."
    said = f"Of the others, {said}" if of_all.against else said
    if list(RANKED)[choice.best] != first:
        return said
    units = sampled_units(shown.measured.batch, shown.measured.sketch)
    return f"{said} {lead(choice.over_next, plain(titles[second]), units)}"


def lead(paired: Interval, other: str, units: SampledUnits) -> str:
    """Return whether the best is ahead of the next one, or how many samples would show a difference.

    `paired` is the difference of their progress, on the same samples.
    """
    if paired.tells:
        return f"The next one, {other}, is {short(paired.value)} ({interval_ends(paired)}) behind."
    needed, tie = units_needed(units.count, paired), f"It ties with the next one, {other}."
    if needed is None:
        return tie
    asked = f"{_rounded(needed, units.count)} {units.kind} (this step has {units.count:,})"
    return f"{tie} To separate them, record {asked}."


def study_said(shown: Shown, config: CorrectionConfig, link: Callable[[str, str], str]) -> str:
    """Return, in Markdown, what training says: first about kinds of corrections whose steps look better than it.

    `link` makes the name of a study in a sentence a link.
    """
    of_all, kind, sentences = ranked(shown), kind_of(config), []
    for condemned in dict.fromkeys(map(kind_of_preset, sorted(of_all.against))):
        if of_all.ended and condemned and condemned != kind:
            sentences.append(link(say_study.condemned(of_all.ended, condemned), of_all.ended.name))
    if kind and (ended := studies.ends(shown.run, kind)):
        sentences.append(link(say_study.of_kind(ended, kind, over_nothing(shown, config)), ended.name))
    return " ".join(sentences)


# --- the strips ---


def _slider_values(shown: Shown, config: CorrectionConfig, b: Bound, value: float) -> strips.Values:
    """Return the values of the bound's slider, over the range in which the gradient changes if that is known."""
    with suppress(UsageError):  # every token has the same ratio
        thresholds = sketches.thresholds(shown.measured, config, b.id)
        low, high = min(thresholds), max(thresholds)
        return slider_values_of(replace(b, low=max(low, b.low), high=min(high, b.high)), value, count=COUNT)
    return slider_values_of(b, value, count=COUNT)


def bound_strip(shown: Shown, config: CorrectionConfig, b: Bound, slider_values: strips.Values) -> Package:
    """Return what changes in `gradient`, for every value of the slider of this bound."""
    reports = sketches.measured_at(shown.measured, config, b.id, slider_values)
    return strip_of(shown, config, b, slider_values, reports)


def strip_of(
    shown: Shown, config: CorrectionConfig, b: Bound, slider_values: strips.Values, reports: list[GradientReport],
    *, with_ranking: bool = True,
) -> Package:  # fmt: skip
    """Return the same for the reports at these values."""
    sweep, pictures = None, {}
    if with_ranking:
        lines = [gradients.shown_line(report.progress[shown.size_index]) for report in reports]
        pictures["ranking"] = PictureStrip(shapes=lines)
    for first in bounds_of(config)[:1]:
        with suppress(UsageError):  # every ratio is 1; the page says so instead of showing the curve
            sweep = sketches.swept(shown.measured, config, first.id)
    if sweep is not None and is_first(b, config):
        cursors = gradients.progress_cursors(sweep, shown.batch_size, slider_values)
        pictures["gradient_curves"] = PictureStrip(shapes=cursors)
    texts = {ANSWER: [answer(shown, config, report, sweep) for report in reports]}
    return strips.package({}, [numbers(report, shown.size_index) for report in reports], texts, pictures)
