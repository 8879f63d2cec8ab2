"""The Start page: three training runs on one screen, each with a picture and a button that opens it in a view."""

from collections.abc import Callable, Mapping
from pathlib import Path

import state
import streamlit as st
from components.links import Link, links
from components.live_part import Slider, live_part
from components.offers import offer
from components.picture import picture
from controls.sharing import view_links
from data import corrections, lessons, recorded, studies
from data.bounds import bounds_of, useful_slider_values, with_bounds
from data.names import run_title
from data.selection import Selection
from live import bench as live_bench
from live import strips
from text import learn as learn_text
from text import phrases
from text import start as say
from text.formatting import plain
from text.pages import PAGES
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
from rlcorr.strips.packing import pack
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


def show(paths: dict[str, Path], shown: Selection | None) -> None:
    st.html(STYLE)
    if shown is None:
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
    _any(shown)


def _links(heading: str = "", query: Mapping[str, str] | None = None) -> None:
    """Show a heading, and next to it links to the lessons, the papers, and the code if its address is known.

    With a query there is a link to the bench, too.
    """
    with st.container(key="start_links", horizontal=True, vertical_alignment="center"):
        st.markdown(f"##### {heading}" if heading else say.INTRODUCTION, width="stretch")
        shown = [Link(say.OPEN_MOVING, {"view": "bench", **query})] if query is not None else []
        shown += [Link(say.LESSONS, {"view": "learn"}), Link(say.PAPERS, {"view": "learn", "learn": learn_text.SHEET})]
        if (code := public_address(lessons.LESSONS.parent)) is not None:
            shown.append(Link(say.CODE, address=code))
        links(*shown, key="start_links_row")


def _played(run: Path) -> None:
    """Show one bound on one step; its slider moves by itself, once."""
    step, record = _newest(run)
    batch, texts = record.batch, live_bench.first_answers(record)
    identity, preset = corrections.identity(run, step), PRESETS[say.PLAYED_PRESET]
    (b,) = bounds_of(preset.config)
    value = b.within(state.get(KEY))
    config = with_bounds(preset.config, {b.id: value})
    slider_values = useful_slider_values([(identity, batch)], config, b, value)

    def packed_strip() -> bytes:
        return pack(live_bench.start_strip(batch, config, b, slider_values))

    slider = Slider(
        KEY, say.MOVING_LABEL, slider_values, value, generation=state.generation(KEY),
        strip=offer("strips", KEY, packed_strip, version=strips.strip_key(identity, config, b, slider_values)),
        plays_to=min(slider_values, key=lambda other: abs(other - say.PLAYED_TO)),
    )  # fmt: skip
    query = {"run": say.PLAYED, "preset": say.PLAYED_PRESET}
    _links(say.MOVING, query | ({} if value == b.value else {b.key: f"{value:.12g}"}))
    st.markdown(say.MOVING_IS)
    with st.container(key="start"):
        content = live_bench.start_content(batch, config, texts)
        live_part([slider], content, source=recorded.source(run, step), resets={})


def _story(story: Story, draw: Callable[[Story, Path], float | None], paths: dict[str, Path]) -> None:
    with st.container(key=f"story_{story.title}", horizontal=True, vertical_alignment="center"):
        st.markdown(f"##### {story.title}", width="stretch")
        if story.run in paths:
            to = {**dict(story.query), "view": story.view, "tour": story.tour}
            links(Link(story.button, to), key=f"open_{story.tour}")
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
    opened = [Link(slug, {"view": "training", "run": slug}) for slug in local]
    links(*opened, Link(say.TRAIN, {"view": "training", "part": "Train"}), key="your_runs")


def _any(shown: Selection) -> None:
    """Show links to the other views, which show the selected run."""
    st.markdown(f"##### {say.ANY}")
    st.markdown(say.ANY_IS.format(run=f"**{plain(run_title(shown.slug))}**"))
    view_links([name for name in PAGES if name != "start"], key="any_view")
