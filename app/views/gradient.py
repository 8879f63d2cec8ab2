"""The gradient view: bias, noise and direction of a correction's gradient, on a recorded step and exactly on a toy."""

import streamlit as st
from browser.picture import picture
from controls.bounds import bounds_of
from controls.configuration import live_bound, preset_name, settings
from controls.moving import Moving, Number, Picture, moved
from controls.moving import show as show_moving
from controls.pickers import show_step
from data import sketches
from remembered import notices, session
from words import gradient as say
from words import words
from words.text import plain, table

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.analysis.thresholds import is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.figures.correction import Figure
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sketch import Sketch
from rlcorr.records import runs


@st.fragment
def gradient(chosen: session.Selection, step: int, sketch: Sketch, batch: TokenBatch) -> None:
    """What is picked, and beside it what moves with the first bound."""
    of = sketches.identity(chosen.run, step)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = preset_name()
        config = settings(PRESETS[name].config)
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    with right:
        live(of, sketch, batch, name, config)
    _kl(of, sketch)


@st.fragment
def live(of: sketches.Identity, sketch: Sketch, batch: TokenBatch, name: str, config: CorrectionConfig) -> None:
    """What moves with a threshold."""
    source = say.TOY_SOURCE.format(source=session.source())
    config = live_bound(config, answer=lambda at: moved(_moving(of, batch, sketch, name, at, source)))
    try:
        show_moving(_moving(of, batch, sketch, name, config, source))
    except UsageError as error:
        st.warning(plain(str(error)))


def _moving(
    of: sketches.Identity, batch: TokenBatch, sketch: Sketch, name: str, config: CorrectionConfig, source: str
) -> Moving:
    report = sketches.reported(of, batch, sketch, config)
    if report.reference_length.value == 0:
        raise UsageError(say.NOISE_REFERENCE)
    below = {
        "plane": Picture(
            _plane(of, batch, sketch, name, config, report), "All presets between bias and noise", say.PLANE
        ),
        "parts": Picture(_decomposition(of, batch, sketch, config), "Where the error comes from", say.DECOMPOSED),
    }
    try:
        curves, refused = _curves(of, batch, sketch, config, source), ""
    except UsageError as error:
        curves, refused = {}, str(error)
    return Moving(_numbers(report), [row for row in (curves, below) if row], refused)


def _numbers(report: GradientReport) -> dict[str, Number]:
    shown = {
        "Bias": report.relative_bias, "Noise": report.noise, "Error": report.error, "Cosine": report.cosine,
        "Step length": report.scale, "Sequence ESS": report.ess,
    }  # fmt: skip
    return {
        label: Number(
            _short(interval.value), say.NUMBERS[label], 118, f"{_short(interval.low)} to {_short(interval.high)}"
        )
        for label, interval in shown.items()
    }


def _short(value: float) -> str:
    return "–" if value != value else f"{value:.2f}"


def _curves(
    of: sketches.Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig, source: str
) -> dict[str, Picture]:
    """Raises `UsageError` where there is no bound to move, or no token is off."""
    bounds = bounds_of(config)
    if not bounds:
        raise UsageError("This configuration has no bound to move.")
    b = bounds[0]
    rule, side = b.rule, b.side
    sweep = sketches.swept(of, batch, sketch, config, rule, side)
    best = f"Smallest error at {sweep.best.value:.4g}, between {sweep.best.low:.4g} and {sweep.best.high:.4g}."
    gap, size = sketches.gap(of, batch), len(batch.response_mask)
    exact = sketches.toy(gap, size, config, sweep.thresholds, rule, side)
    toy = gradients.exact_curves(exact, of_ratio=is_ratio(config, rule), at=b.value)
    return {
        "gradient_curves": Picture(
            gradients.threshold_curves(sweep, at=b.value), "This step, over the bound", f"{say.RECORDED} {best}"
        ),
        "toy_curves": Picture(toy, "The toy, exactly", say.TOY.format(gap=gap, size=size), source),
    }


def _plane(
    of: sketches.Identity,
    batch: TokenBatch,
    sketch: Sketch,
    name: str,
    config: CorrectionConfig,
    report: GradientReport,
) -> Figure:
    choice = sketches.all_presets(of, batch, sketch)
    reports = dict(zip(PRESETS, choice.reports, strict=True))
    marked = name if config == PRESETS[name].config else f"{name}, changed"
    return gradients.bias_noise_plane({**reports, marked: report}, marked=marked)


def _decomposition(of: sketches.Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig) -> Figure:
    error = sketches.decomposed(of, batch, sketch, config)
    parts = (error.level, error.truncation, error.rejection, error.denominator, error.noise)
    return gradients.parts_of_error(dict(zip(say.PARTS, parts, strict=True)))


def _kl(of: sketches.Identity, sketch: Sketch) -> None:
    st.markdown("##### k2 against k3: the value of a KL estimator is not its gradient")
    picked = st.segmented_control(
        "KL to", list(say.TARGETS), default=next(iter(say.TARGETS)), key="kl_target", required=True
    )
    target = say.TARGETS[picked]
    places = sketch.next_tokens
    recorded = {} if places is None else {"ref": places.ref_log_probs, "rollout": places.rollout_log_probs}
    if places is None or recorded[target] is None:
        st.info(plain(say.NO_PLACES.format(target=picked)))
        return
    reports = sketches.kl_losses(of, places, target)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        caption = say.KL.format(places=len(places.log_probs))
        picture("Direction", gradients.kl_directions(reports), key="kl", caption=caption)
    with right:
        rows = [[name, _range(loss.cosine), _range(loss.length), _range(loss.noise)] for name, loss in reports.items()]
        st.html(table(["loss", *say.KL_NUMBERS], rows, say.KL_NUMBERS))


def _range(interval: Interval) -> str:
    return f"{_short(interval.value)} ({_short(interval.low)}\u00a0to\u00a0{_short(interval.high)})"


def show(chosen: session.Selection) -> None:
    st.caption(say.INTRO)
    if chosen.step is None:
        st.info(words.NO_STEPS)
        return
    try:
        sketch, batch = sketches.sketch_and_batch(chosen.run, chosen.step)
    except UsageError as error:
        st.info(plain(str(error)))
        for step in runs.list_sketches(chosen.run):
            st.button(say.GO.format(step=step), key=f"sketched_{step}", on_click=show_step, args=(step,))
        return
    gradient(chosen, chosen.step, sketch, batch)


show(session.selection())
