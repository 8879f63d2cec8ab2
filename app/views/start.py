"""The Start page: three training runs on one screen, each with a picture and a button that opens it in a view."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import streamlit as st
from components.live_part import LiveContent, Slider
from components.picture import picture
from controls import drag
from controls.bounds import bounds_of, useful_slider_values, with_bounds
from data import corrections, lessons, recorded, studies
from data.names import run_title
from live import bench as live_bench
from live import strips
from state import address, navigation, notices, session
from state.fields import Bound
from state.navigation import TOUR
from text import learn as learn_text
from text import phrases
from text import start as say
from text.formatting import plain
from text.start import Story
from text.tours import STUDY, TOURS

from rlcorr import PRESETS
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.symptoms import short
from rlcorr.errors import UsageError
from rlcorr.figures import cells, correction, mismatch, study
from rlcorr.measuring.metrics import describe
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord
from rlcorr.records.study import study_path
from rlcorr.teaching.code_address import public_address
from rlcorr.types import TokenBatch

KEY = "start_bound"
HEIGHT = 215  # pixels of a picture, so that three stories fit on one screen
# Little space between the parts, so that the beginnings of the three stories are on the first screen.
STYLE = """<style>
[data-testid="stVerticalBlock"]:has(> * > .st-key-start_links) { gap: 0.5rem }
[data-testid="stMain"] h4 { font-size: 1.2rem }
.st-key-start h3 { font-size: 0.9rem }
.st-key-start .rl-resets { display: none }
.st-key-start .rl-row { grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)) }
@media (min-width: 1000px) { .st-key-start .rl-row { grid-template-columns: 2fr 1fr } }
</style>"""


def show(paths: dict[str, Path]) -> None:
    st.html(STYLE)
    for sentence in notices.sentences(KEY):
        st.warning(plain(sentence))
    if not paths:
        return
    if say.PLAYED in paths:
        _played(paths[say.PLAYED])
    else:
        _links()
    trained = study_path(STUDY).is_file()
    stories = (say.HEALTHY, say.STALE, say.COLLAPSING if trained else say.LONG)
    pictures = (_density, _density, _reward if trained else _lengths)
    for column, story, draw in zip(st.columns(3, gap="medium", border=True), stories, pictures, strict=True):
        with column:
            _story(story, draw, paths)
    _yours(paths)
    _any(paths)


def _links(heading: str = "", query: Mapping[str, str] | None = None) -> None:
    """Show a heading, and next to it links to the lessons, the papers, and the code if its address is known.

    With a query there is a link to the bench, too.
    """
    with st.container(key="start_links", horizontal=True, vertical_alignment="center"):
        st.markdown(f"##### {heading}" if heading else say.INTRODUCTION, width="stretch")
        if query is not None:
            navigation.link_to("bench", query, say.OPEN_MOVING, width="content")
        navigation.link_to("learn", {}, say.LESSONS, width="content")
        navigation.link_to("learn", {"learn": learn_text.SHEET}, say.PAPERS, width="content")
        if (code := public_address(lessons.LESSONS.parent)) is not None:
            st.page_link(code, label=say.CODE, width="content")


@address.fragment
def _played(run: Path) -> None:
    """Show one bound on one step; its slider moves by itself, once."""
    step, record = _newest(run)
    batch, texts = record.batch, live_bench.first_answers(record)
    identity, preset = corrections.identity(run, step), PRESETS[say.PLAYED_PRESET]
    (b,) = bounds_of(preset.config)
    address.restore(KEY, b.value, partial(_parsed, b))
    value = st.session_state[KEY]
    _say(value, b)
    config = with_bounds(preset.config, {b.id: value})
    slider_values = useful_slider_values([(identity, batch)], config, b, value)

    def content(value: float) -> LiveContent:
        return live_bench.start_content(batch, with_bounds(preset.config, {b.id: value}), texts)

    slider = Slider(
        KEY, say.MOVING_LABEL, slider_values, value, generation=address.number(),
        address=drag.offer(KEY, content),
        strip=drag.offer_strip(
            KEY,
            strips.strip_key(identity, config, b, slider_values),
            partial(live_bench.start_strip, batch, config, b, slider_values),
        ),
        plays_to=min(slider_values, key=lambda other: abs(other - say.PLAYED_TO)),
    )  # fmt: skip
    query = {"run": say.PLAYED, "preset": say.PLAYED_PRESET}
    _links(say.MOVING, query | ({} if value == b.value else {b.key: f"{value:.12g}"}))
    st.markdown(say.MOVING_IS)
    dragged, source = drag.Dragged(slider, partial(_put, b)), recorded.source(run, step)
    drag.show_live([dragged], content(value), key="start", resets={}, source=source)


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
    with st.container(key=f"story_{story.title}", horizontal=True, vertical_alignment="center"):
        st.markdown(f"##### {story.title}", width="stretch")
        if story.run in paths:
            query = dict(story.query) | {TOUR: story.tour}
            navigation.link_to(story.view, query, story.button, width="content")
    st.markdown(story.sentence)
    if story.run not in paths:
        st.info(plain(say.MISSING.format(run=story.run)))
        return
    st.caption(say.TOUR.format(count=len(TOURS[story.tour].steps)))
    try:
        k3 = draw(story, paths[story.run])
        if k3 is not None:
            st.markdown(say.K3.format(k3=short(k3)), help=plain(describe("k3_kl")), width="content")
    except UsageError as error:
        st.error(plain(str(error)))


def _newest(run: Path) -> tuple[int, StepRecord]:
    step, problems = recorded.latest(run, runs.list_steps(run))
    if step is None:
        raise runs.DamagedFile(" ".join([*problems, phrases.NO_STEPS]))
    return step, recorded.step(run, step)


def _density(story: Story, run: Path) -> float:
    step, record = _newest(run)
    batch = record.batch
    _picture(say.DENSITY_TITLE, cells.probability_density(batch), say.DENSITY, story, recorded.source(run, step))
    return _k3(batch)


def _lengths(story: Story, run: Path) -> float:
    step, record = _newest(run)
    batch = record.batch
    figure = mismatch.by_length(batch, SEQUENCE_METHODS)
    _picture(say.LENGTH_TITLE, figure, say.LENGTH, story, recorded.source(run, step))
    return _k3(batch)


def _reward(story: Story, run: Path) -> None:
    table = studies.table(STUDY)
    rows = [row | {"preset": say.REWARD_PRESETS.get(row["preset"], row["preset"])} for row in table.rows]
    figure = study.study_curves(rows, list(say.REWARD_PRESETS.values()), "reward")
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
    st.markdown(say.ANY_IS.format(run=f"**{plain(run_title(session.selection().slug))}**"))
    with st.container(horizontal=True):
        for name, page in navigation.pages().items():
            if name != "start":
                st.page_link(page)


show(recorded.all_runs())
