"""The Start page: one sentence of a real model and what a correction does to it, what it gained, and cards."""

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import state
import streamlit as st
from components.hero import Tile, ends, tiles
from components.links import Link, links
from components.live_part import ANSWER, LiveContent, Note, Slider, live_part
from components.offers import offer
from components.picture import picture
from controls import strips
from controls.choosing import buttons
from controls.sharing import verdict
from data import corrections, lessons, recorded, studies
from data.recorded import Selection
from text import phrases
from text import start as say
from text.formatting import percent, plain
from text.tours import STUDY, TOURS

from rlcorr import CorrectionConfig
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.token_story import furthest_token
from rlcorr.correction import old_log_probs
from rlcorr.errors import UsageError
from rlcorr.figures import cells, mismatch, study
from rlcorr.figures.canvas import Figure
from rlcorr.records import runs
from rlcorr.records.study import last_accuracies, study_path
from rlcorr.records.token_texts import END, NEW_LINE, pieces
from rlcorr.strips.packing import Package, pack
from rlcorr.strips.slider_scale import slider_scale
from rlcorr.teaching.code_address import public_address

KEY, HERO = "start_bound", "hero"
VALUES = slider_scale(say.LOW, say.HIGH, of_ratio=True, count=121, also=(say.USUAL,))
HEIGHT = 170
"""Pixels of the picture of a card."""


def show(paths: dict[str, Path], shown: Selection | None) -> None:
    if shown is None:
        return
    if say.PLAYED in paths:
        _hero(paths[say.PLAYED])
    else:
        verdict(say.WITHOUT)
    st.markdown(f"## {phrases.WHAT_IS_THIS}\n{phrases.EXPLAIN}")
    stories = [story for story in say.STORIES if story != say.COLLAPSING or study_path(STUDY).is_file()]
    columns = cycle(st.columns(3, gap="medium"))
    for story in stories:
        with next(columns), st.container(border=True, key=f"story_{story.title}"):
            _story(story, paths)
    with next(columns), st.container(border=True):
        st.html("<div class='rl-drop' aria-hidden='true'>▶</div>")
        st.markdown(f"### {say.LAB_TITLE}\n{say.LAB}")
        links(Link(say.OPEN_LAB, {"view": "lab"}), key="open_lab")
    with next(columns), st.container(border=True):
        st.html(f"<div class='rl-drop'>{say.OWN_DROP}</div>")
        st.markdown(f"### {say.OWN_TITLE}\n{say.OWN}")
        links(Link(say.OPEN_OWN, {"view": "yours"}), key="open_yours")
    _more(paths)


def _more(paths: dict[str, Path]) -> None:
    """Show links to the lessons, to training and to the newest runs of this machine."""
    local = [slug for slug, path in paths.items() if path.parent == runs.LOCAL and recorded.has_steps(path)][:4]
    shown = [Link(say.LESSONS, {"view": "learn"}), Link(say.TRAIN, {"view": "training", "part": "Train"})]
    if (code := public_address(lessons.LESSONS.parent)) is not None:
        shown.append(Link(say.CODE, address=code))
    links(*shown, *(Link(slug, {"view": "training", "run": slug}) for slug in local), key="start_more")


# --- one sentence, token by token ---


def _hero(run: Path) -> None:
    """Show the sentence with the largest gap of the last step, under the correction that is chosen."""
    record = _newest(run)
    title, model = said(record)
    verdict(title)
    left, right = st.columns([5, 2], gap="medium")
    with left:
        with st.container(horizontal=True, vertical_alignment="center", key="start_model"):
            st.markdown(model, width="stretch")
            fix = buttons("fix", say.FIX, say.FIXES, hide_label=True)
        with st.container(key="start"):
            threshold = min(VALUES, key=lambda value: abs(value - state.get(KEY)))
            sliders, content = part(record, fix, threshold)
            version = repr((corrections.identity(run, record.step), fix))
            offered = [
                replace(
                    slider, generation=state.generation(KEY),
                    strip=offer("strips", KEY, lambda: pack(strip(record, fix)), version=version),
                )
                for slider in sliders
            ]  # fmt: skip
            live_part(offered, content, source=recorded.source(run, record.step), resets={})
    with right:
        if study_path(say.STUDY).is_file():
            st.markdown(f"## {say.GAINED}")
            st.html(gained(fix))
            st.markdown(f"{say.GAINED_IS} {say.NOT_TRAINED if fix == say.REJECT else ''}")
            to = {"view": "training", "part": "Study", "study": say.STUDY}
            links(Link(say.OPEN_STUDY, to), key="open_study")


def said(record: runs.StepRecord) -> tuple[str, str]:
    """Return the title and the sentence about the token with the largest gap, in Markdown."""
    tokens, _ = sentence(record, CorrectionConfig())
    gap = tokens[-1]
    title = say.TITLE.format(sampler=_share(gap.sampler), trainer=_share(gap.trainer))
    return title, say.MODEL.format(token=plain(gap.text.strip()))


def sentence(record: runs.StepRecord, config: CorrectionConfig) -> tuple[list[Tile], dict[str, float]]:
    """Return the tokens up to the one with the largest gap, and the metrics of the correction on the whole step."""
    batch = record.batch
    result, report = corrections.corrected(batch, config)
    row, column = furthest_token(batch, result, range(len(batch.response_mask))) or (0, 0)
    weights = result.weights * result.keep_mask
    shown = slice(max(0, column + 1 - say.MOST_TOKENS), column + 1)
    columns = (batch.rollout_log_probs.exp(), old_log_probs(batch).exp(), weights)
    texts = [text.replace(NEW_LINE, " ").replace(END, "") for text in pieces(record)[row][shown]]
    of_tokens = zip(texts, *(of[row, shown].tolist() for of in columns), strict=True)
    return [Tile(*of_token) for of_token in of_tokens], report


def part(record: runs.StepRecord, fix: str, threshold: float) -> tuple[list[Slider], LiveContent]:
    """Return the sliders of a correction, without their strip, and the content for this threshold."""
    sliders = [Slider(KEY, say.LABELS[fix], VALUES, threshold, generation=0)] if fix in say.LABELS else []
    tokens, report = sentence(record, config_of(fix, threshold))
    gap = tokens[-1]
    names = say.SAMPLER.format(share=_share(gap.sampler)), say.TRAINER.format(share=_share(gap.trainer))
    shown = tiles(tokens, len(tokens) - 1, names, [say.counted(token.weight) for token in tokens])
    texts = {ANSWER: say.answer(fix, gap.text.strip(), threshold, report)}
    return sliders, LiveContent({}, [], texts=texts, tables={HERO: shown}, notes=[Note("", HERO)])


def strip(record: runs.StepRecord, fix: str) -> Package:
    """Return what the slider of a correction changes."""
    return strips.package_contents([part(record, fix, threshold)[1] for threshold in VALUES])


def config_of(fix: str, threshold: float) -> CorrectionConfig:
    """Return the correction: the ratio as weight, with a cap, or without the tokens outside a band."""
    if fix == say.NOTHING:
        return CorrectionConfig()
    lower, mode = (None, "truncate") if fix == say.CAP else (1 / threshold, "mask")
    return CorrectionConfig(
        rollout_is="token", rollout_is_threshold=threshold, rollout_is_threshold_lower=lower, rollout_is_mode=mode
    )


def gained(fix: str) -> str:
    """Return how the runs of the planned study ended, as HTML."""
    accuracies = last_accuracies(studies.table(say.STUDY).rows)
    arms = {name: [*accuracies[arm].values()] for arm, name in say.ARMS.items()}
    return ends(arms, fix, max(max(shares) for shares in arms.values()))


def _share(share: float) -> str:
    """Return a probability for a title: two digits, and two decimals if it is small."""
    return f"{100 * share:.0f} %" if share >= 0.01 else percent(share)


# --- cards ---


def _story(story: say.Story, paths: dict[str, Path]) -> None:
    if story.run in paths:
        try:
            _picture(story, paths[story.run])
        except UsageError as error:
            st.error(plain(str(error)))
    else:
        st.info(plain(say.MISSING.format(run=story.run)))
    st.markdown(f"### {story.title}\n{story.sentence}")
    if story.run in paths:
        first = TOURS[story.tour].steps[0]
        to = {**dict(first.query), "view": first.view, "tour": story.tour}
        links(Link(story.button, to), key=f"open_{story.tour}")


def _picture(story: say.Story, run: Path) -> None:
    if story == say.COLLAPSING:
        table = studies.table(STUDY)
        rows = [row | {"preset": say.REWARD_PRESETS.get(row["preset"], row["preset"])} for row in table.rows]
        figure = study.study_curves(rows, list(say.REWARD_PRESETS.values()), "reward")
        title, caption, source = say.REWARD_TITLE, say.REWARD, table.source
    else:
        record = _newest(run)
        source = recorded.source(run, record.step)
        if story == say.LONG:
            title, figure, caption = say.LENGTH_TITLE, mismatch.by_length(record.batch, SEQUENCE_METHODS), say.LENGTH
        else:
            title, figure, caption = say.DENSITY_TITLE, cells.probability_density(record.batch), say.DENSITY
    picture(title, _bare(figure), key=f"picture_{story.title}", caption=caption, source=source, is_named=False)


def _bare(figure: Figure) -> Figure:
    """Return the figure as the picture of a card: without axes and legend."""
    margin = dict.fromkeys("lrtb", 4)
    figure.update_layout(showlegend=False, height=HEIGHT, margin=margin, xaxis_visible=False, yaxis_visible=False)
    return figure.update_layout(yaxis_scaleanchor=None)  # a square would leave half of the card empty


def _newest(run: Path) -> runs.StepRecord:
    step, problems = recorded.latest(run, runs.list_steps(run))
    if step is None:
        raise runs.DamagedFile(" ".join([*problems, phrases.NO_STEPS]))
    return recorded.step(run, step)
