"""The gradient view: the progress that a correction's gradient makes, on a recorded step and exactly on a toy."""

from dataclasses import replace
from functools import partial

import streamlit as st
from components.live_part import Moving
from components.picture import picture
from controls import batch_size
from controls.bounds import bounds_of
from controls.configuration import bound_sliders, bounded, preset_name, resets, settings
from controls.live import show as show_live
from controls.pickers import show_step
from data import sketches
from data.sketches import Sketched
from live import gradient as moving
from live import strips
from state import notices, session
from text import gradient as say
from text import phrases
from text.formatting import plain, table

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.bounds import is_ratio
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.records import runs


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
    config, size = bounded(config), batch_size.moving_size()
    shown = moving.Shown(measured, name, size)
    sliders = bound_sliders(
        config,
        lambda at: moving.gradient(shown, at),
        strip=lambda at, b, places: (
            strips.known_by((measured.of, name, size), at, b, places),
            partial(moving.bound_strip, shown, at, b, places),
        ),
        places_of=partial(moving.places, shown, config),
    )
    sliders.append(
        batch_size.slider(
            lambda size: moving.gradient(replace(shown, batch_size=size), config),
            of=repr((measured.of, name, config)),
            strip=partial(moving.size_strip, shown, config),
        )
    )
    refused = ""
    try:
        moved = moving.gradient(shown, config)
    except UsageError as error:
        moved, refused = Moving({}, []), str(error)
    show_live(sliders, moved, key="gradient", resets=resets())
    if refused:
        st.warning(plain(refused))
        return
    # Closed, it costs nothing; a picture that is drawn unseen would also have the wrong width.
    folded = st.expander(say.TOY_FOLDED, key="toy", on_change="rerun", bind="query-params")
    if folded.open and bounds_of(config):
        with folded:
            _toy(shown, config)


def _toy(shown: moving.Shown, config: CorrectionConfig) -> None:
    (b, *_), source = bounds_of(config), say.TOY_SOURCE.format(source=session.source())
    try:
        thresholds = sketches.swept(shown.measured, config, b.rule, b.side).thresholds
    except UsageError as error:  # no token is off
        st.info(plain(str(error)))
        return
    exact = sketches.toy(shown.measured.gap, shown.batch_size, config, thresholds, b.rule, b.side)
    figure = gradients.exact_curves(exact, of_ratio=is_ratio(config, b.rule), at=b.value)
    caption = say.TOY.format(gap=shown.measured.gap, size=shown.batch_size)
    picture("The toy, exactly", figure, key="toy_curves", caption=caption, source=source)


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
        st.info(phrases.NO_STEPS)
        return
    try:
        measured = sketches.sketched(chosen.run, chosen.step)
    except UsageError as error:
        st.info(plain(str(error)))
        for step in runs.list_sketches(chosen.run):
            st.button(say.GO.format(step=step), key=f"sketched_{step}", on_click=show_step, args=(step,))
        return
    sketch = measured.sketch
    st.caption(say.measured_on(measured.batch, sketch))
    if isinstance(sketch, ExactSketch):
        if sketch.unseen:
            st.caption(say.of_these_prompts(sketches.reported(measured, CorrectionConfig()).reference_noise))
        if little := say.little_covered(sketch.answers.coverage):
            st.warning(plain(little))
    gradient(measured)


show(session.selection())
