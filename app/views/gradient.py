"""The gradient view: bias, noise and direction of a correction's gradient, on a recorded step and exactly on a toy."""

import streamlit as st
from browser.picture import picture
from controls import pickers as controls
from controls.moving import Moving, Number, Picture, moved
from controls.moving import show as show_moving
from data import gradients as gradient_data
from remembered import session as state
from words import gradient as say
from words import words

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
def gradient(chosen: state.Selection, step: int, sketch: Sketch, batch: TokenBatch) -> None:
    """What is picked, and beside it what moves with the first bound."""
    of = gradient_data.identity(chosen.run, step)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        name = controls.preset_name()
        config = controls.settings(PRESETS[name].config)
    for sentence in state.notices():
        st.warning(words.plain(sentence))
    with right:
        live(of, sketch, batch, name, config)
    _kl(of, sketch)


@st.fragment
def live(of: gradient_data.Identity, sketch: Sketch, batch: TokenBatch, name: str, config: CorrectionConfig) -> None:
    """What moves with a threshold."""
    source = say.TOY_SOURCE.format(source=state.source())
    config = controls.live_bound(config, answer=lambda at: moved(_moving(of, batch, sketch, name, at, source)))
    try:
        show_moving(_moving(of, batch, sketch, name, config, source))
    except UsageError as error:
        st.warning(words.plain(str(error)))


def _moving(
    of: gradient_data.Identity, batch: TokenBatch, sketch: Sketch, name: str, config: CorrectionConfig, source: str
) -> Moving:
    found = gradient_data.reported(of, batch, sketch, config)
    if found.reference_length.value == 0:
        raise UsageError(say.NOISE_REFERENCE)
    below = {
        "plane": Picture(
            _plane(of, batch, sketch, name, config, found), "All presets between bias and noise", say.PLANE
        ),
        "parts": Picture(_decomposition(of, batch, sketch, config), "Where the error comes from", say.DECOMPOSED),
    }
    try:
        curves, refused = _curves(of, batch, sketch, config, source), ""
    except UsageError as error:
        curves, refused = {}, str(error)
    return Moving(_numbers(found), [row for row in (curves, below) if row], refused)


def _numbers(found: GradientReport) -> dict[str, Number]:
    shown = {
        "Bias": found.relative_bias, "Noise": found.noise, "Error": found.error, "Cosine": found.cosine,
        "Step length": found.scale, "ESS": found.ess,
    }  # fmt: skip
    return {
        label: Number(_short(each.value), say.NUMBERS[label], 118, f"{_short(each.low)} to {_short(each.high)}")
        for label, each in shown.items()
    }


def _short(value: float) -> str:
    return "–" if value != value else f"{value:.2f}"


def _curves(
    of: gradient_data.Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig, source: str
) -> dict[str, Picture]:
    """Raises `UsageError` where there is no bound to move, or no token is off."""
    bounds = controls.bounds_of(config)
    if not bounds:
        raise UsageError("This configuration has no bound to move.")
    b = bounds[0]
    rule, side = controls.part_of(config, b)
    sweep = gradient_data.swept(of, batch, sketch, config, rule, side)
    best = f"Smallest error at {sweep.best.value:.4g}, between {sweep.best.low:.4g} and {sweep.best.high:.4g}."
    gap, size = gradient_data.gap(of, batch), len(batch.response_mask)
    exact = gradient_data.toy(gap, size, config, sweep.thresholds, rule, side)
    toy = gradients.exact_curves(exact, of_ratio=is_ratio(config, rule), at=b.value)
    return {
        "gradient_curves": Picture(
            gradients.threshold_curves(sweep, at=b.value), "This step, over the bound", f"{say.RECORDED} {best}"
        ),
        "toy_curves": Picture(toy, "The toy, exactly", say.TOY.format(gap=gap, size=size), source),
    }


def _plane(
    of: gradient_data.Identity,
    batch: TokenBatch,
    sketch: Sketch,
    name: str,
    config: CorrectionConfig,
    found: GradientReport,
) -> Figure:
    choice = gradient_data.all_presets(of, batch, sketch)
    reports = dict(zip(PRESETS, choice.reports, strict=True))
    marked = name if config == PRESETS[name].config else f"{name}, changed"
    return gradients.bias_noise_plane({**reports, marked: found}, marked=marked)


def _decomposition(of: gradient_data.Identity, batch: TokenBatch, sketch: Sketch, config: CorrectionConfig) -> Figure:
    found = gradient_data.decomposed(of, batch, sketch, config)
    parts = dict(
        zip(say.PARTS, (found.level, found.truncation, found.rejection, found.denominator, found.noise), strict=True)
    )
    return gradients.parts_of_error(parts)


def _kl(of: gradient_data.Identity, sketch: Sketch) -> None:
    st.markdown("##### k2 against k3: the value of a KL estimator is not its gradient")
    picked = st.segmented_control(
        "KL to", list(say.TARGETS), default=next(iter(say.TARGETS)), key="kl_target", required=True
    )
    target = say.TARGETS[picked]
    places = sketch.next_tokens
    known = None if places is None else {"ref": places.ref_log_probs, "rollout": places.rollout_log_probs}[target]
    if places is None or known is None:
        st.info(words.plain(say.NO_PLACES.format(target=picked)))
        return
    reports = gradient_data.kl_losses(of, places, target)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        caption = say.KL.format(places=len(places.log_probs))
        picture("Direction", gradients.kl_directions(reports), key="kl", caption=caption)
    with right:
        rows = [[name, _range(each.cosine), _range(each.length), _range(each.noise)] for name, each in reports.items()]
        st.html(words.table(["loss", *say.KL_NUMBERS], rows, say.KL_NUMBERS))


def _range(interval: Interval) -> str:
    return f"{_short(interval.value)} ({_short(interval.low)}\u00a0to\u00a0{_short(interval.high)})"


def show(chosen: state.Selection) -> None:
    st.caption(say.INTRO)
    if chosen.step is None:
        st.info(words.NO_STEPS)
        return
    try:
        sketch, batch = gradient_data.sketch_and_batch(chosen.run, chosen.step)
    except UsageError as error:
        st.info(words.plain(str(error)))
        for step in runs.list_sketches(chosen.run):
            st.button(say.GO.format(step=step), key=f"sketched_{step}", on_click=controls.show_step, args=(step,))
        return
    gradient(chosen, chosen.step, sketch, batch)


show(state.selection())
