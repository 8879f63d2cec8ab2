"""The Training view: runs over their steps, one step in short, the study, and the training run in progress."""

from functools import partial

import streamlit as st
from components.picture import picture
from controls import overlaid
from controls.pickers import record_of, show_step
from controls.segments import choose_one
from data import corrections, recorded
from data.names import run_labels
from state import navigation, notices, session
from text import phrases
from text import training as say
from text.formatting import clipped, number, plain, swatches, table
from views.training_live import answers_table, follow, train
from views.training_study import study

from rlcorr import CorrectionConfig
from rlcorr.figures import training
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records.runs import DamagedFile

VIEWS = ("mismatch", "bench", "gradient", "tokens")
SIZES = {"Reward": "reward", "Mean |Δ|": f"{PREFIX}abs_log_ratio", "k3": f"{PREFIX}k3_kl", "Tokens": f"{PREFIX}tokens"}
ACROSS = 3
LONGEST = 400  # characters of a prompt or a response in a table


def show(selection: session.Selection) -> None:
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    follow(selection)
    runs, study_part, _ = say.PARTS
    left, right = st.columns([1, 2])
    with left:
        part = choose_one("Show", say.PARTS, runs, "part")
    if part == runs:
        _runs(selection)
    elif part == study_part:
        study(right)
    else:
        train()


def _runs(selection: session.Selection) -> None:
    _course(selection)
    _story(selection)
    _curves(selection)
    answers_table(selection.run)
    if not selection.steps:
        st.info(phrases.NO_STEPS)
    elif selection.step is not None:
        _step(selection, selection.step)
    _provenance(selection)


def _course(selection: session.Selection) -> None:
    """Show a sentence about the course of reward and mismatch."""
    rows = recorded.metric_rows(selection.run)
    ends = {label: recorded.first_and_last(recorded.series(rows, key)) for label, key in say.COURSES.items()}
    st.markdown(f"##### {plain(say.course(len(rows), ends))}")


def _story(selection: session.Selection) -> None:
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.markdown(phrases.EXPLAIN)
    try:
        story = recorded.manifest(selection.run).story
    except DamagedFile as error:
        count = len(recorded.metric_rows(selection.run))
        st.error(plain(f"{error} Still readable: {count} rows of metrics, {len(selection.steps)} step files."))
    else:
        if story:
            st.markdown(f"**This run.** {plain(story)}")


def _curves(selection: session.Selection) -> None:
    """Show every metric over the steps, for the selected run and the compared ones. A click opens a step."""
    paths = recorded.all_runs()
    others = overlaid.pick(paths, selection.slug)
    rows = {slug: recorded.metric_rows(paths[slug]) for slug in (selection.slug, *others)}
    if not any(rows.values()):
        return
    if others:
        labels = run_labels(rows)
        st.html(swatches({labels[slug]: colour for slug, colour in training.run_colours(list(rows)).items()}))
        st.caption(say.DOTTED)
    source = recorded.source(selection.run, None) if len(rows) == 1 else say.several(list(rows))
    panels = list(training.PANELS.items())
    for first in range(0, len(panels), ACROSS):
        for column, (name, panel) in zip(st.columns(ACROSS), panels[first : first + ACROSS], strict=False):
            title, caption = say.CURVES[name]
            figure = training.over_steps(panel, rows, at=selection.step, recorded=selection.steps)
            key = f"curve_{name}"
            with column:
                clicked = partial(_clicked, key, selection.steps)
                picture(title, figure, key=key, caption=caption, source=source, on_click=clicked)
    st.caption(say.CLICK)


def _clicked(key: str, steps: tuple[int, ...]) -> None:
    clicked_step = st.session_state[key]["click"]["x"]
    if steps:
        show_step(training.nearest(steps, clicked_step))


def _step(selection: session.Selection, step: int) -> None:
    """Show the step in short, and links to the views that show all of it."""
    record = record_of(selection, step)
    if record is None:
        return
    st.markdown(f"##### {say.OPENED.format(step=step)}")
    with st.container(horizontal=True, vertical_alignment="center", key="open_in"):
        st.caption(say.OPEN_IN, width="content")
        for name in VIEWS:
            st.page_link(navigation.pages()[name])
    row = next((row for row in recorded.metric_rows(selection.run) if row["step"] == step), {})
    with st.container(horizontal=True, key="sizes"):
        for label, key in SIZES.items():
            value = recorded.series([row], key)[0]
            if value is not None:
                st.metric(label, number(value), help=say.SIZES[label], width=112)
    st.caption(say.RESPONSES)
    result, _ = corrections.corrected(record.batch, CorrectionConfig())
    rows = [
        [clipped(r.prompt, LONGEST), clipped(r.text, LONGEST), number(r.reward), f"{r.mean_ratio:.4f}"]
        for r in recorded.largest_mismatch(record, result, 6)
    ]
    st.html(table(["Prompt", "Response", "Reward", "Mean ratio"], rows))


def _provenance(selection: session.Selection) -> None:
    try:
        manifest = recorded.manifest(selection.run)
    except DamagedFile:
        return  # `_story` shows what can still be read
    with st.expander("Where this run comes from"):
        facts = ("task", "model", "engine", "trainer_dtype", "seed", "hardware", "git_commit")
        rows = [
            [name.replace("_", " "), str(getattr(manifest, name))] for name in facts if getattr(manifest, name) != ""
        ]
        rows += [[name, str(version)] for name, version in {**manifest.engine_settings, **manifest.versions}.items()]
        st.html(table(["", ""], rows))
    if manifest.status != "running":
        _check(selection)


def _check(selection: session.Selection) -> None:
    """Show whether every file agrees with its hash; cached until a file changes."""
    report = recorded.verified(selection.run)
    readable = (
        f"Readable: {report.readable_steps} of {report.recorded_steps} steps, {report.metric_rows} rows of metrics."
    )
    if not report.problems:
        st.caption(f"Every file agrees with its hash. {readable}")
        return
    lines = "\n".join(f"- {plain(problem)}" for problem in report.problems)
    st.error(f"Damaged files:\n\n{lines}\n\n{readable}")


show(session.selection())
