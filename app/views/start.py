"""The start: three trainings on one screen, each with a picture and one button that opens it in the right state."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st
from components.live_part import Moving, Slider
from components.picture import picture
from controls import drag
from controls.bounds import bounds_of, places_on, with_bounds
from controls.live import Dragged
from controls.live import show as show_live
from data import corrections, recorded, studies
from live import start as moving
from live import strips
from live.bench import bench_strip
from state import navigation, notices, session
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

HEIGHT = 215  # pixels of a picture: three stories fit one screen


def show(paths: dict[str, Path]) -> None:
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    if not paths:
        return
    if say.PLAYED in paths:
        _moving(paths[say.PLAYED])
    trained = study_path(say.STUDY).is_file()
    stories = (say.HEALTHY, say.STALE, say.COLLAPSING if trained else say.LONG)
    pictures = (_density, _density, _reward if trained else _lengths)
    for place, story, draw in zip(st.columns(3, gap="medium", border=True), stories, pictures, strict=True):
        with place:
            _story(story, draw, paths)
    _yours(paths)
    _any(paths)


@st.fragment
def _moving(run: Path) -> None:
    """One bound over one step, whose thumb moves by itself once."""
    step, batch = _newest(run)
    of, chosen = corrections.identity(run, step), PRESETS[say.PLAYED_PRESET]
    (b,) = bounds_of(chosen.config)
    value = st.session_state.get("start_bound", b.value)
    config = with_bounds(chosen.config, {(b.rule, b.side): value})
    places = places_on([(of, batch)], config, b, value)

    def at(value: float) -> Moving:
        return moving.played(batch, with_bounds(chosen.config, {(b.rule, b.side): value}))

    slider = Slider(
        "start_bound", b.label, places, value, generation=0, address=drag.offer("start_bound", at),
        strip=drag.offer_strip(
            "start_bound", strips.known_by(of, config, b, places), partial(bench_strip, of, batch, config, b, places)
        ),
        plays_to=min(places, key=lambda place: abs(place - say.PLAYED_TO)),
    )  # fmt: skip
    st.markdown(f"##### {say.MOVING}\n{say.MOVING_IS}")
    show_live([Dragged(slider, _put)], at(value), key="start", resets={}, source=recorded.source(run, step))
    query = {"run": say.PLAYED, "preset": say.PLAYED_PRESET}
    query |= {} if value == b.value else {b.key: f"{value:.12g}"}
    navigation.link_to("bench", query, say.OPEN_MOVING)


def _put(value: float, done: bool) -> None:
    st.session_state["start_bound"] = value


def _story(story: Story, draw: Callable[[Story, Path], float | None], paths: dict[str, Path]) -> None:
    st.markdown(f"##### {story.title}\n{story.sentence}")
    if story.run not in paths:
        st.info(plain(say.MISSING.format(run=story.run)))
        return
    query = dict(story.query) or {"run": story.run, "preset": story.preset}
    if query.get("study") in [*studies.all_studies()][:1]:
        del query["study"]  # its picker would take its own default out of the address: one more press of Back
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
    """A button for each of the newest local runs, and one that leads to training a real model."""
    local = [slug for slug, path in paths.items() if path.parent == runs.LOCAL and recorded.has_steps(path)][:4]
    st.markdown(f"##### {say.YOURS}")
    st.caption(say.YOURS_ARE if local else say.NONE_YET)
    with st.container(horizontal=True):
        for slug in local:
            navigation.link_to("training", {"run": slug}, plain(slug))
        navigation.link_to("training", {"part": "Train"}, say.TRAIN)


def _any(paths: dict[str, Path]) -> None:
    """Links to the other views, which show the run that is chosen below."""
    st.markdown(f"##### {say.ANY}")
    st.markdown(say.ANY_IS.format(run=f"**{plain(session.selection().slug)}**"))
    with st.container(horizontal=True):
        for name, page in navigation.pages().items():
            if name != "start":
                st.page_link(page)


show(recorded.all_runs())
