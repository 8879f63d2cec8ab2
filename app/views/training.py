"""The Training view: runs over their steps, one step in short, the study, and the training run in progress."""

from functools import partial

import state
import streamlit as st
from components.picture import picture
from controls.choosing import buttons, pick_several
from controls.pickers import picked_record
from controls.sharing import view_links
from data import corrections, recorded
from data.names import run_labels
from data.recorded import Selection
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


def show(selection: Selection) -> None:
    runs, study_part, train_part = say.PARTS
    follow(selection, with_curves=state.get("part") == train_part)
    left, right = st.columns([1, 2])
    with left:
        part = buttons("part", "Show", say.PARTS)
    if part == runs:
        _runs(selection)
    elif part == study_part:
        study(right)
    else:
        train()


def _runs(selection: Selection) -> None:
    _course(selection)
    _story(selection)
    _curves(selection)
    if answers := answers_table(selection.run):
        st.html(answers)
    if not selection.steps:
        st.info(phrases.NO_STEPS)
    elif selection.step is not None:
        _step(selection)
    _provenance(selection)


def _course(selection: Selection) -> None:
    """Show a sentence about the course of reward and mismatch."""
    rows = recorded.metric_rows(selection.run)
    ends = {label: recorded.first_and_last(recorded.series(rows, key)) for label, key in say.COURSES.items()}
    st.markdown(f"##### {plain(say.course(len(rows), ends))}")


def _story(selection: Selection) -> None:
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


def _curves(selection: Selection) -> None:
    """Show every metric over the steps, for the selected run and the compared ones. A click opens a step."""
    paths = recorded.all_runs()
    options = [slug for slug in paths if slug != selection.slug]
    labels = run_labels(options)
    others = pick_several(
        "with", say.COMPARE, options, written=labels.__getitem__, help=say.COMPARE_HELP,
        max_selections=training.MOST_RUNS - 1,
    )  # fmt: skip
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
        state.change(step=str(training.nearest(steps, clicked_step)))


def _step(selection: Selection) -> None:
    """Show the step in short, and links to the views that show all of it."""
    record = picked_record(selection)
    if record is None:
        return
    step = record.step
    st.markdown(f"##### {say.OPENED.format(step=step)}")
    with st.container(horizontal=True, vertical_alignment="center", key="open_in"):
        st.caption(say.OPEN_IN, width="content")
        view_links(VIEWS, key="open_step")
    row = next((row for row in recorded.metric_rows(selection.run) if row["step"] == step), {})
    with st.container(horizontal=True, key="sizes"):
        for label, key in SIZES.items():
            value = recorded.series([row], key)[0]
            if value is not None:
                st.metric(label, number(value), help=say.SIZES[label], width=112)
    st.caption(say.RESPONSES)
    result, _ = corrections.corrected(record.batch, CorrectionConfig())
    rows = [
        [clipped(prompt, LONGEST), clipped(response, LONGEST), number(reward), f"{mean_ratio:.4f}"]
        for prompt, response, reward, mean_ratio in recorded.largest_mismatch(record, result, 6)
    ]
    st.html(table(["Prompt", "Response", "Reward", "Mean ratio"], rows))


def _provenance(selection: Selection) -> None:
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


def _check(selection: Selection) -> None:
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
