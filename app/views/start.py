"""The Start page: three training runs on one screen, each with a picture and a button that opens it in a view."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import state
import streamlit as st
from components.links import Link, links
from components.live_part import ANSWER, LiveContent, Slider, Words, live_part
from components.offers import offer
from components.picture import picture
from controls import strips
from controls.sharing import view_links
from data import corrections, lessons, recorded, studies
from data.bounds import Bound, bounds_of, useful_slider_values, with_bounds
from data.names import run_title
from data.recorded import Selection
from text import learn as learn_text
from text import phrases
from text import start as say
from text.formatting import plain
from text.pages import PAGES
from text.tours import STUDY, TOURS
from views import bench

from rlcorr import PRESETS, CorrectionConfig, TokenBatch
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.symptoms import short
from rlcorr.errors import UsageError
from rlcorr.figures import cells, mismatch, study
from rlcorr.figures.fates import token_fates
from rlcorr.measuring.metrics import describe
from rlcorr.records import runs
from rlcorr.records.study import study_path
from rlcorr.records.token_texts import END, NEW_LINE, pieces
from rlcorr.strips.packing import Package, PictureStrip, arrays_of, pack
from rlcorr.strips.strip import strip, token_cells
from rlcorr.teaching.code_address import public_address

KEY = "start_bound"
HEIGHT, PLAYED_HEIGHT = 215, 160
"""Pixels of the picture of a story, so that three stories fit on one screen, and of the one that moves."""
WORDS, STATISTIC = "words", "statistic"


def show(paths: dict[str, Path], shown: Selection | None) -> None:
    if shown is None:
        return
    if say.PLAYED in paths:
        _played(paths[say.PLAYED])
    else:
        _links()
    stories = (say.HEALTHY, say.STALE, say.COLLAPSING if study_path(STUDY).is_file() else say.LONG)
    for column, story in zip(st.columns(3, gap="medium", border=True), stories, strict=True):
        with column:
            _story(story, paths)
    local = [slug for slug, path in paths.items() if path.parent == runs.LOCAL and recorded.has_steps(path)][:4]
    st.markdown(f"##### {say.YOURS}")
    st.caption(say.YOURS_ARE if local else say.NONE_YET)
    opened = [Link(slug, {"view": "training", "run": slug}) for slug in local]
    links(*opened, Link(say.TRAIN, {"view": "training", "part": "Train"}), key="your_runs")
    st.markdown(f"##### {say.ANY}")
    st.markdown(say.ANY_IS.format(run=f"**{plain(run_title(shown.slug))}**"))
    view_links([name for name in PAGES if name != "start"], key="any_view")


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


def _story(story: say.Story, paths: dict[str, Path]) -> None:
    with st.container(key=f"story_{story.title}", horizontal=True, vertical_alignment="center"):
        st.markdown(f"##### {story.title}", width="stretch")
        if story.run in paths:
            first = TOURS[story.tour].steps[0]
            to = {**dict(first.query), "view": first.view, "tour": story.tour}
            links(Link(story.button, to), key=f"open_{story.tour}")
    st.markdown(story.sentence)
    if story.run not in paths:
        st.info(plain(say.MISSING.format(run=story.run)))
        return
    st.caption(say.TOUR.format(count=len(TOURS[story.tour].steps)))
    try:
        _picture(story, paths[story.run])
    except UsageError as error:
        st.error(plain(str(error)))


def _picture(story: say.Story, run: Path) -> None:
    """Show the picture of a story, and k3 below it if the picture is of one step."""
    batch = None
    if story == say.COLLAPSING:
        table = studies.table(STUDY)
        rows = [row | {"preset": say.REWARD_PRESETS.get(row["preset"], row["preset"])} for row in table.rows]
        figure = study.study_curves(rows, list(say.REWARD_PRESETS.values()), "reward")
        title, caption, source = say.REWARD_TITLE, say.REWARD, table.source
    else:
        record = _newest(run)
        batch, source = record.batch, recorded.source(run, record.step)
        if story == say.LONG:
            title, figure, caption = say.LENGTH_TITLE, mismatch.by_length(batch, SEQUENCE_METHODS), say.LENGTH
        else:
            title, figure, caption = say.DENSITY_TITLE, cells.probability_density(batch), say.DENSITY
    figure.layout.height = HEIGHT
    picture(title, figure, key=f"picture_{story.title}", caption=caption, source=source)
    if batch is not None:
        k3 = short(corrections.corrected(batch, corrections.NO_CORRECTION)[1]["k3_kl"])
        st.markdown(say.K3.format(k3=k3), help=plain(describe("k3_kl")), width="content")


def _newest(run: Path) -> runs.StepRecord:
    step, problems = recorded.latest(run, runs.list_steps(run))
    if step is None:
        raise runs.DamagedFile(" ".join([*problems, phrases.NO_STEPS]))
    return recorded.step(run, step)


# --- the picture that moves ---


def _played(run: Path) -> None:
    """Show one bound on one step; its slider moves by itself, once."""
    record, config = _newest(run), PRESETS[say.PLAYED_PRESET].config
    batch, texts, identity = record.batch, first_answers(record), corrections.identity(run, record.step)
    (b,) = bounds_of(config)
    value = b.within(state.get(KEY))
    slider_values = useful_slider_values([(identity, batch)], config, b, value)
    strip_key, make = strips.of_bounds(identity, partial(start_strip, batch))(config, b, slider_values)
    slider = Slider(
        KEY, say.MOVING_LABEL, slider_values, value, generation=state.generation(KEY),
        strip=offer("strips", KEY, lambda: pack(make()), version=strip_key),
        plays_to=min(slider_values, key=lambda other: abs(other - say.PLAYED_TO)),
    )  # fmt: skip
    query = {"run": say.PLAYED, "preset": say.PLAYED_PRESET}
    _links(say.MOVING, query | ({} if value == b.value else {b.key: f"{value:.12g}"}))
    st.markdown(say.MOVING_IS)
    with st.container(key="start"):
        content = start_content(batch, with_bounds(config, {b.id: value}), texts)
        live_part([slider], content, source=recorded.source(run, record.step), resets={})


def first_answers(record: runs.StepRecord) -> list[list[str]]:
    """Return the texts of the tokens of the first answers. An end token is an empty text."""
    return [[text.replace(NEW_LINE, " ").replace(END, "") for text in row] for row in pieces(record)[: say.SHOWN]]


def start_content(batch: TokenBatch, config: CorrectionConfig, texts: Sequence[Sequence[str]]) -> LiveContent:
    """Return the live part of the Start page: the first answers of a step in words, and the statistic of one rule.

    `texts` has the texts of the tokens of these answers. Raises `UsageError` if the correction does.
    """
    result, report = corrections.corrected(batch, config)
    statistic = replace(bench.pictures_of(batch, result, config)[STATISTIC], caption="")
    statistic.figure.layout.height = PLAYED_HEIGHT
    fates = token_fates(batch, result, config)
    total = len(batch.response_mask)
    fates_of_texts = [fates[row, : len(tokens)].tolist() for row, tokens in enumerate(texts)]
    words = Words(texts, fates_of_texts, say.WORDS.format(shown=len(texts), all=total), "")
    return LiveContent({}, [{WORDS: words, STATISTIC: statistic}], texts={ANSWER: say.answer(report, total)})


def start_strip(batch: TokenBatch, config: CorrectionConfig, b: Bound, slider_values: strips.Values) -> Package:
    """Return what changes in `start_content`, for every value of the slider of this bound of the first rule."""
    bound_strip = strip(batch, config, slider_values, b.id)
    pictures = {WORDS: PictureStrip(cells=True)}
    if bound_strip.statistic is not None:
        pictures[STATISTIC] = strips.histogram(STATISTIC, bound_strip.statistic)
    reports, total = strips.reports(batch, config, bound_strip), len(batch.response_mask)
    texts = {ANSWER: [say.answer(one, total) for one in reports]}
    arrays = arrays_of(bound_strip) | token_cells(batch, config, slider_values, b.id).arrays()
    return strips.package(arrays, [{}] * len(slider_values), texts, pictures)
