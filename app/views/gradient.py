"""The Gradient view: the progress of a correction's gradient, on a recorded step and exactly on a toy."""

from dataclasses import replace
from functools import partial

import state
import streamlit as st
from components.live_part import LiveContent, live_part
from components.picture import picture
from controls.choosing import batch_size_slider, buttons, folding
from controls.configuration import bound_sliders, resets, settings
from controls.sharing import with_study_link
from data import sketches, study_ends
from data.bounds import bounds_of
from data.configuration import FIRST
from data.selection import Selection
from data.sketches import Sketched
from live import gradient as live_gradient
from live import strips
from text import gradient as say
from text import phrases
from text import study_ends as say_study
from text.formatting import plain, table

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.bounds import is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.records import runs
from rlcorr.records.study_ends import kind_of


def gradient(measured: Sketched, selection: Selection) -> None:
    """Show the live part, and below it the choices and the KL losses."""
    if PRESETS[state.get("preset")].loss.score_centering:
        st.caption(phrases.CENTERED_GRADIENT)
    above = st.container()
    config = settings()
    with above:
        live(measured, selection, config)
    measured_on(measured)
    _kl(measured, selection.source)


def measured_on(measured: Sketched) -> None:
    """Show what the numbers are measured on, below them."""
    st.caption(say.measured_on(measured.batch, measured.sketch))
    if isinstance(measured.sketch, ExactSketch) and measured.sketch.finite_population_factor:
        st.caption(say.of_these_prompts(sketches.reported(measured, CorrectionConfig()).reference_noise))


def live(measured: Sketched, selection: Selection, config: CorrectionConfig) -> None:
    """Show what changes with a bound or with the batch size, and the toy below it."""
    name, size = state.get("preset"), state.get("answers")
    shown = live_gradient.Shown(measured, name, size)
    sliders = bound_sliders(
        config,
        strip=lambda now, b, slider_values: (
            strips.strip_key((measured.identity, name, size), now, b, slider_values),
            partial(live_gradient.bound_strip, shown, now, b, slider_values),
        ),
        slider_values=partial(live_gradient.slider_values, shown, config),
    )
    sliders.append(
        batch_size_slider(
            strip_key=repr((measured.identity, name, config)),
            strip=partial(live_gradient.size_strip, shown, config),
        )
    )
    refused = ""
    try:
        content = live_gradient.gradient(shown, config)
    except UsageError as error:
        content, refused = LiveContent({}, []), str(error)
    content = replace(content, said=_study(shown, config, selection))
    live_part(sliders, content, source=selection.source, resets=resets(FIRST))
    if refused:
        st.warning(plain(refused))
        return
    # The toy is computed only if its box is open. A picture drawn in a closed box would have the wrong width, too.
    box = folding("toy", say.TOY_FOLDED)
    if state.get("toy") and bounds_of(config):
        with box:
            _toy(shown, config, selection.source)


def _study(shown: live_gradient.Shown, config: CorrectionConfig, selection: Selection) -> str:
    """Return how training runs with this kind of correction ended under such a mismatch, if a study has both."""
    kind = kind_of(config)
    ended = study_ends.ends(selection.run, kind) if kind else None
    if not ended or not kind:
        return ""
    return with_study_link(say_study.of_kind(ended, kind, live_gradient.over_nothing(shown, config)), ended.name)


def _toy(shown: live_gradient.Shown, config: CorrectionConfig, source: str) -> None:
    (b, *_), source = bounds_of(config), say.TOY_SOURCE.format(source=source)
    try:
        thresholds = sketches.swept(shown.measured, config, b.id).thresholds
    except UsageError as error:  # every ratio is 1
        st.info(plain(str(error)))
        return
    exact = sketches.toy(shown.measured.gap, shown.batch_size, config, thresholds, b.id)
    figure = gradients.exact_curves(exact, of_ratio=is_ratio(config, b.id), at=b.value)
    caption = say.TOY.format(gap=shown.measured.gap, size=shown.batch_size)
    picture(say.TOY_TITLE, figure, key="toy_curves", caption=caption, source=source)


def _kl(measured: Sketched, source: str) -> None:
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


def show(selection: Selection) -> None:
    if selection.step is None:
        st.info(phrases.NO_STEPS)
        return
    try:
        measured = sketches.sketched(selection.run, selection.step)
    except UsageError as error:
        st.info(plain(str(error)))
        for step in runs.list_sketches(selection.run):
            st.button(
                say.GO.format(step=step), key=f"sketched_{step}", on_click=state.change, kwargs={"step": str(step)}
            )
        return
    if isinstance(measured.sketch, ExactSketch) and (little := say.little_covered(measured.sketch.answers.coverage)):
        st.warning(plain(little))
    gradient(measured, selection)
