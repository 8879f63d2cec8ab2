"""The gradient view: the progress that a correction's gradient makes, on a recorded step and exactly on a toy."""

from dataclasses import dataclass, replace

import streamlit as st
from browser.picture import picture
from controls import batch_size
from controls.bounds import bounds_of
from controls.configuration import live_bound, preset_name, settings
from controls.moving import Moving, Number, Picture, moved
from controls.moving import show as show_moving
from controls.pickers import show_step
from data import sketches
from data.sketches import Sketched
from remembered import notices, session
from remembered.fields import Bound
from words import gradient as say
from words import words
from words.text import plain, table

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.thresholds import is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.figures.correction import Figure
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.records import runs


@dataclass(frozen=True)
class Shown:
    """What the pictures are of, but for the bound that is dragged."""

    measured: Sketched
    preset: str
    batch_size: int
    toy_source: str | None
    """Where the toy's picture says that it comes from; None while it is folded."""

    @property
    def place(self) -> int:
        """Of the batch size among those that are measured."""
        return sketches.BATCH_SIZES.index(self.batch_size)


@st.fragment
def gradient(measured: Sketched) -> None:
    """What is picked, and beside it what moves with the first bound."""
    batch_size.check_url()
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = preset_name()
        config = settings(PRESETS[name].config)
    for sentence in notices.sentences(batch_size.KEY):
        st.warning(plain(sentence))
    with right:
        live(measured, name, config)
    _kl(measured)


@st.fragment
def live(measured: Sketched, name: str, config: CorrectionConfig) -> None:
    """What moves with a threshold, or with the answers in a batch."""
    above = st.container()
    # Closed, it costs nothing; a picture that is drawn unseen would also have the wrong width.
    folded = st.expander(say.TOY_FOLDED, key="toy", on_change="rerun", bind="query-params")
    with above:
        left, right = st.columns(2, gap="medium")
        with right:
            size = batch_size.batch_size()
        source = say.TOY_SOURCE.format(source=session.source())
        shown = Shown(measured, name, size, source if folded.open else None)
        with left:
            config = live_bound(config, answer=lambda at: moved(_moving(shown, at)))
        with right:
            batch_size.follow(lambda size: moved(_moving(replace(shown, batch_size=size), config)))
        try:
            show_moving(_moving(shown, config), folded)
        except UsageError as error:
            st.warning(plain(str(error)))


def _moving(shown: Shown, config: CorrectionConfig) -> Moving:
    report = sketches.reported(shown.measured, config)
    if report.reference_length.value == 0:
        raise UsageError(say.NOISE_REFERENCE)
    below = {
        "plane": Picture(
            _plane(shown, config, report), "All presets between bias and noise", say.PLANE.format(size=shown.batch_size)
        ),
        "parts": Picture(_decomposition(shown.measured, config), "Where the bias comes from", say.DECOMPOSED),
    }
    bounds, curves, toy = bounds_of(config), {}, {}
    refused = "" if bounds else "This configuration has no bound to move."
    try:
        if bounds:
            curves = _curves(shown, config, bounds[0])
            toy = {} if shown.toy_source is None else _toy(shown, config, bounds[0], shown.toy_source)
    except UsageError as error:
        refused = str(error)
    ranked = {"ranking": _ranked(shown, config, report)}
    return Moving(_numbers(report, shown.place), [row for row in (curves, ranked, below) if row], refused, folded=toy)


def _numbers(report: GradientReport, place: int) -> dict[str, Number]:
    shown = (
        report.progress[place], report.relative_bias, report.noise[place], report.cosine, report.scale, report.ess
    )  # fmt: skip
    return {
        label: Number(say.short(interval.value), help, 118, f"{say.short(interval.low)} to {say.short(interval.high)}")
        for (label, help), interval in zip(say.NUMBERS.items(), shown, strict=True)
    }


def _curves(shown: Shown, config: CorrectionConfig, b: Bound) -> dict[str, Picture]:
    """Raises `UsageError` where no token is off."""
    sweep, size = sketches.swept(shown.measured, config, b.rule, b.side), shown.batch_size
    best, choice = sweep.best[shown.place], sweep.ranking.choices[shown.place]
    units, unit = sketches.units(shown.measured), say.unit(_coverage(shown.measured))
    over = say.over(choice.over_nothing, "no correction", units, unit)
    ends = {name: f"{end:.4g}" for name, end in (("best", best.value), ("low", best.low), ("high", best.high))}
    most = say.MOST.format(size=size, over=over, **ends)
    return {
        "gradient_curves": Picture(
            gradients.progress_curves(sweep, size, at=b.value), "This step, over the bound", f"{say.RECORDED} {most}"
        ),
        "best_bounds": Picture(
            gradients.best_thresholds(sweep, batch_size=size), "The best bound, over the batch", say.BEST_BOUNDS
        ),
    }


def _toy(shown: Shown, config: CorrectionConfig, b: Bound, source: str) -> dict[str, Picture]:
    thresholds = sketches.swept(shown.measured, config, b.rule, b.side).thresholds
    exact = sketches.toy(shown.measured.gap, shown.batch_size, config, thresholds, b.rule, b.side)
    figure = gradients.exact_curves(exact, of_ratio=is_ratio(config, b.rule), at=b.value)
    caption = say.TOY.format(gap=shown.measured.gap, size=shown.batch_size)
    return {"toy_curves": Picture(figure, "The toy, exactly", caption, source)}


def _ranked(shown: Shown, config: CorrectionConfig, report: GradientReport) -> Picture:
    """All presets, with what is shown among them, under the sentence about the best."""
    ranking, marked = sketches.all_presets(shown.measured), _marked(shown, config)
    changed = None if marked == shown.preset else report
    figure = gradients.ranking_bars(list(PRESETS), ranking, shown.batch_size, marked=marked, changed=changed)
    units, unit = sketches.units(shown.measured), say.unit(_coverage(shown.measured))
    best = say.best_preset(ranking.choices[shown.place], list(PRESETS), units, unit)
    return Picture(figure, "All presets by their progress", say.RANKED, above=best)


def _plane(shown: Shown, config: CorrectionConfig, report: GradientReport) -> Figure:
    reports = dict(zip(PRESETS, sketches.all_presets(shown.measured).reports, strict=True))
    marked = _marked(shown, config)
    return gradients.bias_noise_plane({**reports, marked: report}, shown.batch_size, marked=marked)


def _marked(shown: Shown, config: CorrectionConfig) -> str:
    """What the configuration that is shown is called."""
    return shown.preset if config == PRESETS[shown.preset].config else f"{shown.preset}, changed"


def _decomposition(measured: Sketched, config: CorrectionConfig) -> Figure:
    bias = sketches.decomposed(measured, config)
    parts = (bias.level, bias.truncation, bias.rejection, bias.denominator)
    return gradients.parts_of_bias(dict(zip(say.PARTS, parts, strict=True)))


def _coverage(measured: Sketched) -> dict[str, float] | None:
    """Where all likely answers were enumerated."""
    return measured.sketch.answers.coverage if isinstance(measured.sketch, ExactSketch) else None


def _kl(measured: Sketched) -> None:
    st.markdown("##### k2 against k3: the value of a KL estimator is not its gradient")
    st.markdown(say.KL_ADVICE)
    picked = st.segmented_control(
        "KL to", list(say.TARGETS), default=next(iter(say.TARGETS)), key="kl_target", required=True
    )
    target = say.TARGETS[picked]
    places = measured.sketch.next_tokens
    recorded = {} if places is None else {"ref": places.ref_log_probs, "rollout": places.rollout_log_probs}
    if places is None or recorded[target] is None:
        st.info(plain(say.NO_PLACES.format(target=picked)))
        return
    reports = sketches.kl_losses(measured, places, target)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        caption = say.KL.format(places=len(places.log_probs))
        picture("Direction", gradients.kl_directions(reports), key="kl", caption=caption)
    with right:
        rows = [[name, _range(loss.cosine), _range(loss.length), _range(loss.noise)] for name, loss in reports.items()]
        st.html(table(["loss", *say.KL_NUMBERS], rows, say.KL_NUMBERS))


def _range(interval: Interval) -> str:
    return f"{say.short(interval.value)} ({say.short(interval.low)}\u00a0to\u00a0{say.short(interval.high)})"


def show(chosen: session.Selection) -> None:
    if chosen.step is None:
        st.info(words.NO_STEPS)
        return
    try:
        measured = sketches.sketched(chosen.run, chosen.step)
    except UsageError as error:
        st.info(plain(str(error)))
        for step in runs.list_sketches(chosen.run):
            st.button(say.GO.format(step=step), key=f"sketched_{step}", on_click=show_step, args=(step,))
        return
    coverage = _coverage(measured)
    st.caption(say.measured_on(sketches.units(measured), coverage))
    if coverage is not None:
        st.caption(say.of_these_prompts(sketches.reported(measured, CorrectionConfig()).reference_noise))
        if little := say.little_covered(coverage):
            st.warning(plain(little))
    gradient(measured)


show(session.selection())
