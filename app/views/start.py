"""The Start page: three training runs on one screen, each with a picture and a button that opens it in a view."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st
from components.live_part import LiveContent, Slider
from components.picture import picture
from controls import drag
from controls.bounds import bounds_of, useful_slider_values, with_bounds
from data import corrections, recorded, studies
from live import bench as live_bench
from live import strips
from state import address, navigation, notices, session
from state.fields import Bound
from text import phrases
from text import start as say
from text.formatting import number, plain
from text.start import Story

from rlcorr import PRESETS
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.errors import UsageError
from rlcorr.figures import cells, correction, mismatch, study
from rlcorr.measuring.metrics import describe
from rlcorr.records import runs
from rlcorr.records.study import study_path
from rlcorr.types import TokenBatch

KEY = "start_bound"
HEIGHT = 215  # pixels of a picture, so that three stories fit on one screen


def show(paths: dict[str, Path]) -> None:
    for sentence in notices.sentences(KEY):
        st.warning(plain(sentence))
    if not paths:
        return
    if say.PLAYED in paths:
        _played(paths[say.PLAYED])
    trained = study_path(say.STUDY).is_file()
    stories = (say.HEALTHY, say.STALE, say.COLLAPSING if trained else say.LONG)
    pictures = (_density, _density, _reward if trained else _lengths)
    for column, story, draw in zip(st.columns(3, gap="medium", border=True), stories, pictures, strict=True):
        with column:
            _story(story, draw, paths)
    _yours(paths)
    _any(paths)


@address.fragment
def _played(run: Path) -> None:
    """Show one bound on one step; its slider moves by itself, once."""
    step, batch = _newest(run)
    identity, preset = corrections.identity(run, step), PRESETS[say.PLAYED_PRESET]
    (b,) = bounds_of(preset.config)
    address.restore(KEY, b.value, partial(_parsed, b))
    value = st.session_state[KEY]
    _say(value, b)
    config = with_bounds(preset.config, {b.id: value})
    slider_values = useful_slider_values([(identity, batch)], config, b, value)

    def content(value: float) -> LiveContent:
        return live_bench.start_content(batch, with_bounds(preset.config, {b.id: value}))

    slider = Slider(
        KEY, say.MOVING_LABEL, slider_values, value, generation=address.number(),
        address=drag.offer(KEY, content),
        strip=drag.offer_strip(
            KEY,
            strips.strip_key(identity, config, b, slider_values),
            partial(live_bench.bench_strip, identity, batch, config, b, slider_values),
        ),
        plays_to=min(slider_values, key=lambda other: abs(other - say.PLAYED_TO)),
    )  # fmt: skip
    st.markdown(f"##### {say.MOVING}\n{say.MOVING_IS}")
    dragged, source = drag.Dragged(slider, partial(_put, b)), recorded.source(run, step)
    drag.show_live([dragged], content(value), key="start", resets={}, source=source)
    query = {"run": say.PLAYED, "preset": say.PLAYED_PRESET}
    query |= {} if value == b.value else {b.key: f"{value:.12g}"}
    navigation.link_to("bench", query, say.OPEN_MOVING)


def _put(b: Bound, value: float, done: bool) -> None:
    st.session_state[KEY] = value
    if done:
        _say(value, b)


def _say(value: float, b: Bound) -> None:
    address.say(KEY, value, b.value, "{:.12g}".format)


def _parsed(b: Bound, raw: str) -> float:
    try:
        value = float(raw)
    except ValueError as error:
        raise UsageError(f"{KEY}={raw!r} is not a number.") from error
    if not b.low <= value <= b.high:
        raise UsageError(f"{KEY}={raw} is out of range. Allowed: {b.low:g} to {b.high:g}.")
    return value


def _story(story: Story, draw: Callable[[Story, Path], float | None], paths: dict[str, Path]) -> None:
    st.markdown(f"##### {story.title}\n{story.sentence}")
    if story.run not in paths:
        st.info(plain(say.MISSING.format(run=story.run)))
        return
    query = dict(story.query) or {"run": story.run, "preset": story.preset}
    with st.container(key=f"story_{story.title}"):
        navigation.link_to(story.view, query, story.button)
    try:
        k3 = draw(story, paths[story.run])
        if k3 is not None:
            st.markdown(say.K3.format(k3=number(k3)), help=plain(describe("k3_kl")), width="content")
    except UsageError as error:
        st.error(plain(str(error)))
    st.markdown(f"{say.PRESS.format(press=story.press)}  \n{say.CHANGES.format(changes=story.changes)}")


def _newest(run: Path) -> tuple[int, TokenBatch]:
    step, problems = recorded.latest(run, runs.list_steps(run))
    if step is None:
        raise runs.DamagedFile(" ".join([*problems, phrases.NO_STEPS]))
    return step, recorded.step(run, step).batch


def _density(story: Story, run: Path) -> float:
    step, batch = _newest(run)
    _picture(say.DENSITY_TITLE, cells.probability_density(batch), say.DENSITY, story, recorded.source(run, step))
    return _k3(batch)


def _lengths(story: Story, run: Path) -> float:
    step, batch = _newest(run)
    figure = mismatch.by_length(batch, SEQUENCE_METHODS)
    _picture(say.LENGTH_TITLE, figure, say.LENGTH, story, recorded.source(run, step))
    return _k3(batch)


def _reward(story: Story, run: Path) -> None:
    table = studies.table(say.STUDY)
    figure = study.study_curves(table.rows, say.REWARD_PRESETS, "reward")
    _picture(say.REWARD_TITLE, figure, say.REWARD, story, table.source)


def _k3(batch: TokenBatch) -> float:
    return corrections.corrected(batch, corrections.NO_CORRECTION)[1]["k3_kl"]


def _picture(title: str, figure: correction.Figure, caption: str, story: Story, source: str) -> None:
    figure.layout.height = HEIGHT
    picture(title, figure, key=f"picture_{story.title}", caption=caption, source=source)


def _yours(paths: dict[str, Path]) -> None:
    """Show a link for each of the newest local runs, and one to train a real model."""
    local = [slug for slug, path in paths.items() if path.parent == runs.LOCAL and recorded.has_steps(path)][:4]
    st.markdown(f"##### {say.YOURS}")
    st.caption(say.YOURS_ARE if local else say.NONE_YET)
    with st.container(horizontal=True):
        for slug in local:
            navigation.link_to("training", {"run": slug}, plain(slug))
        navigation.link_to("training", {"part": "Train"}, say.TRAIN)


def _any(paths: dict[str, Path]) -> None:
    """Show links to the other views, which show the selected run."""
    st.markdown(f"##### {say.ANY}")
    st.markdown(say.ANY_IS.format(run=f"**{plain(session.selection().slug)}**"))
    with st.container(horizontal=True):
        for name, page in navigation.pages().items():
            if name != "start":
                st.page_link(page)


show(recorded.all_runs())
