"""The Training view: runs over their steps, one step in short, the studies, and the training run in progress."""

import html
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import state
import streamlit as st
from components.live_part import Picture
from components.picture import picture
from components.watched import WatchedContent, watch
from controls.choosing import buttons, number, pick, pick_label, pick_several
from controls.sharing import verdict, view_links
from data import recorded, studies
from data.metric_rows import left_out, metric_rows
from data.names import arm_label, arm_title, preset_label, run_labels, study_label
from data.recorded import LATEST, Selection
from streamlit.delta_generator import DeltaGenerator
from text import phrases
from text import study_ends as say_study
from text import training as say
from text.formatting import clipped, duration, paragraph, plain, swatches, table
from text.formatting import number as written

from rlcorr.command import launch
from rlcorr.command.request import LIMITS, TrainRequest, choices, options_of, real_model_megabytes, real_model_options
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import MOST_LINES, colours_of
from rlcorr.figures.study import differences, endpoint_dots, study_curves
from rlcorr.figures.training import PANELS, nearest, over_steps
from rlcorr.records import runs
from rlcorr.records.study import CONTROL, DELAYED_CONTROL, FOLDER, Study, delayed_control

VIEWS = ("mismatch", "bench", "gradient", "tokens")
ACROSS = 3
ERROR, HIDDEN = "live_error", "live_dismissed"
"""Keys of the session: why a run could not be started or stopped, and the process of an ended run that was hidden."""
ROWS = (
    ("preset", "task", "engine"),
    ("dtype", "kv_cache_dtype", "staleness", "temperature"),
    ("learning_rate", "prompts_per_step", "steps", "seed"),
)
"""Fields of the form, row by row. A row has four columns; the title of a preset needs two of them."""
GOING_ON = ("running", "stopping")


def show(selection: Selection) -> None:
    of_runs, of_study, of_training = say.PARTS
    _follow(selection, with_curves=state.get("part") == of_training)
    left, right = st.columns([1, 2])
    with left:
        part = buttons("part", "Show", say.PARTS)
    if part == of_runs:
        _runs(selection)
    elif part == of_study:
        _study(right)
    else:
        _train()


# --- runs over their steps ---


def _runs(selection: Selection) -> None:
    """Show a sentence about the course of reward and mismatch, the curves, and links to the step."""
    rows = metric_rows(selection.run)
    ends = {label: recorded.first_and_last(recorded.series(rows, key)) for label, key in say.COURSES.items()}
    lines, stride = left_out(selection.run)
    verdict(plain(say.course(lines if stride > 1 else len(rows), ends)))
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.markdown(phrases.EXPLAIN)
    manifest = None
    try:
        manifest = recorded.manifest(selection.run)
    except runs.DamagedFile as error:
        st.error(plain(f"{error} Still readable: {lines} rows of metrics, {len(selection.steps)} step files."))
    if manifest and manifest.story:
        st.markdown(f"**This run.** {plain(manifest.story)}")
    _curves(selection)
    if answers := _answers(selection.run):
        st.html(answers)
    if not selection.steps:
        st.info(phrases.NO_STEPS)
    elif selection.step is not None:
        _open_in(selection.step)
    if manifest:
        _provenance(selection, manifest)


def _curves(selection: Selection) -> None:
    """Show every metric over the steps, and below them what to compare with. A click opens a step."""
    paths, shown = recorded.all_runs(), st.container()
    options = [slug for slug in paths if slug != selection.slug]
    others = pick_several(
        "with", say.COMPARE, options, written=run_labels(options).__getitem__, help=say.COMPARE_HELP,
        max_selections=MOST_LINES - 1,
    )  # fmt: skip
    with shown:
        _panels(selection, {slug: metric_rows(paths[slug]) for slug in (selection.slug, *others)})


def _panels(selection: Selection, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Show a picture per metric, of the selected run and the others."""
    if max(map(len, rows.values())) < 2:  # a point is no curve
        return
    if len(rows) > 1:
        labels = run_labels(rows)
        st.html(swatches({labels[slug]: colour for slug, colour in colours_of(rows).items()}))
        st.caption(say.DOTTED)
    source = recorded.source(selection.run, None) if len(rows) == 1 else say.several(list(rows))
    panels = list(PANELS.items())
    for first in range(0, len(panels), ACROSS):
        for column, (name, panel) in zip(st.columns(ACROSS), panels[first : first + ACROSS], strict=False):
            title, caption = say.CURVES[name]
            figure = over_steps(panel, rows, at=selection.step, recorded=selection.steps)
            key, clicked = f"curve_{name}", partial(_clicked, f"curve_{name}", selection.steps)
            with column:
                picture(title, figure, key=key, caption=caption, source=source, on_click=clicked)
    lines, stride = left_out(selection.run)
    st.caption(say.CLICK if stride == 1 else f"{say.CLICK} {say.THINNED.format(rows=lines, stride=stride)}")


def _clicked(key: str, steps: tuple[int, ...]) -> None:
    if steps:
        state.change(step=str(nearest(steps, st.session_state[key]["click"]["x"])))


def _open_in(step: int) -> None:
    """Show links to the views that show the step."""
    with st.container(horizontal=True, vertical_alignment="center", key="open_in"):
        st.caption(say.OPEN_IN.format(step=step), width="content")
        view_links(VIEWS, key="open_step")


def _provenance(selection: Selection, manifest: runs.RunManifest) -> None:
    """Show what made the run, and whether every file agrees with its hash; cached until a file changes."""
    with st.expander("Where this run comes from"):
        facts = ("task", "model", "engine", "trainer_dtype", "seed", "hardware", "git_commit")
        texts = {name.replace("_", " "): str(getattr(manifest, name)) for name in facts}
        rows = [[name, text] for name, text in texts.items() if text]
        rows += [[name, str(version)] for name, version in {**manifest.engine_settings, **manifest.versions}.items()]
        st.html(table(["", ""], rows))
    if manifest.status == "running":
        return
    report = recorded.verified(selection.run)
    steps = f"{report.readable_steps} of {report.recorded_steps} steps"
    readable = f"Readable: {steps}, {report.metric_rows} rows of metrics."
    if not report.problems:
        st.caption(f"Every file agrees with its hash. {readable}")
        return
    lines = "\n".join(f"- {plain(problem)}" for problem in report.problems)
    st.error(f"Damaged files:\n\n{lines}\n\n{readable}")


def _answers(run: Path) -> str:
    """Return the greedy answers to the same held-out prompts, one row per evaluation; nothing if none are recorded."""
    answers = recorded.answers(run)
    if not answers:
        return ""
    prompts = list(dict.fromkeys(clipped(answer.prompt, say.PROMPT_LIMIT) for answer in answers))
    rows: dict[int, dict[str, str]] = {}
    for answer in answers:
        cell = f"{clipped(answer.response, say.ANSWER_LIMIT)}  ({written(answer.reward)})"
        rows.setdefault(answer.step, {})[clipped(answer.prompt, say.PROMPT_LIMIT)] = cell
    cells = [[str(step), *(row.get(prompt, "") for prompt in prompts)] for step, row in rows.items()]
    title, about = html.escape(say.ANSWERS), html.escape(say.ANSWERS_ARE)
    return f"<h3>{title}</h3><p><small>{about}</small></p>{table(['Step', *prompts], cells)}"


# --- the studies: the outcome of every preset under a mismatch that makes training collapse ---


def _study(beside: DeltaGenerator) -> None:
    """Show the study that is picked, with its picker in the container `beside`."""
    index = studies.all_studies()
    if not index:
        st.info(plain(say.NO_STUDIES.format(folder=FOLDER)))
        return
    with beside:
        name = pick_label("study", say.STUDY, {name: study_label(study) for name, study in index.items()})
    shown = index[name]
    st.markdown(plain(f"{shown.story} {shown.look}"))
    try:
        result = studies.table(name)
    except UsageError as error:
        st.info(plain(str(error)))
        return
    _decisions(shown, result)
    names = list(dict.fromkeys(row["preset"] for row in result.rows))
    picked = pick_several("presets", say.PRESETS_DRAWN, names, written=partial(arm_title, shown))
    rows = [*result.rows, *delayed_control(shown, result.rows)]  # the control of a study of old weights, drawn later
    picked = [*picked, *({DELAYED_CONTROL} & {row["preset"] for row in rows} if CONTROL in picked else ())]
    colours = colours_of(row["preset"] for row in rows)
    st.html(swatches({arm_label(shown, arm): colours[arm] for arm in picked}))
    for column, (metric, (title, caption)) in zip(st.columns(3), say.STUDY_CURVES.items(), strict=True):
        with column:
            drawn = [arm for arm in picked if metric == "reward" or arm != DELAYED_CONTROL]
            levels = studies.reward_levels(name, result) if metric == "reward" else None
            figure = study_curves(rows, drawn, metric, log=metric == "k3", levels=levels)
            picture(title, figure, key=f"study_{metric}", caption=caption, source=result.source)


def endpoint_pictures(shown: Study, result: studies.StudyTable) -> dict[str, Picture]:
    """Return the picture of the endpoint that was planned before training, if there was a plan."""
    if shown.endpoint is None:
        return {}
    measure = say_study.measure(shown.endpoint)
    figure = endpoint_dots(result.endpoint, {arm: arm_title(shown, arm) for arm in result.endpoint}, measure.lower())
    return {"study_endpoint": Picture(figure, measure, say.ENDPOINT)}


def _decisions(shown: Study, result: studies.StudyTable) -> None:
    """Show which presets differ from no correction: in sentences, in pictures, and in numbers.

    The pictures are the planned endpoint and the differences.
    """
    titled = partial(arm_title, shown)
    arms = len(result.outcomes)
    heading, lines = say_study.study_said(shown, result.planned, result.against_nothing, titled, arms)
    verdict(heading)
    shows = partial(picture, source=result.source)
    for key, one in endpoint_pictures(shown, result).items():
        shows(one.title, one.figure, key=key, caption=one.caption)
    st.markdown("  \n".join(lines))
    against = {"nothing": result.against_nothing, "chance": result.against_chance}
    compared = {key: pairs for key, pairs in against.items() if pairs}
    for column, (key, pairs) in zip(st.columns(len(compared) or 1, gap="medium"), compared.items(), strict=False):
        title, caption = say.AGAINST[key]
        figure = differences(pairs, {pair.arm: titled(pair.arm) for pair in pairs})
        with column:
            shows(title, figure, key=f"study_{key}", caption=caption.format(count=len(pairs)))
    st.html(say.outcome_table(result.outcomes, titled))
    seeds, steps = len({row["seed"] for row in result.rows}), max(row["step"] for row in result.rows)
    facts = f"{seeds} seeds, {steps} steps; {result.facts.get('engine', '')}, {result.facts.get('hardware', '')}."
    st.caption(f"{say.OUTCOMES} {plain(facts)}")


# --- a training run next to the app: start it, follow it, show its last batch, and stop it ---


def _follow(selection: Selection, *, with_curves: bool) -> None:
    """Show the training run that is in progress or ended last, wherever it was started, and its curves if asked to."""
    if ERROR in st.session_state:
        st.error(plain(st.session_state.pop(ERROR)))
    training = launch.last()
    hidden = st.session_state.get(HIDDEN)
    if training is None or (training.pid == hidden and launch.outcome(training) not in GOING_ON):
        return

    def content() -> WatchedContent:
        return _content(launch.last() or training, selection, with_curves)  # somebody may have asked it to stop

    watch(content, key="live_run", on_press=lambda button: _pressed(button, training))


def _content(training: launch.Training, selection: Selection, with_curves: bool) -> WatchedContent:
    outcome, run = launch.outcome(training), runs.LOCAL / training.run
    is_going_on = outcome in GOING_ON
    if is_going_on:
        said = _bar(training, outcome) + (paragraph(say.ONE_AT_A_TIME) if with_curves else "")
    else:
        failed = outcome == "failed"
        log = f"<pre>{html.escape(launch.last_lines(training.run))}</pre>" if failed else ""
        ended = paragraph(say.STATES[outcome].format(run=training.run))
        said = f"<div class='rl-note-box{' failed' if failed else ''}'>{ended}{log}</div>"
    pictures, below = {}, ""
    if with_curves:
        rows = metric_rows(run)
        said += f"<h3>{html.escape(say.WATCHED.format(run=training.run))}</h3>"
        said += "" if rows else paragraph(say.NO_STEP_YET)
        for name in ("reward", "mismatch") if rows else ():
            title, caption = say.CURVES[name]
            figure = over_steps(PANELS[name], {training.run: rows}, at=None, recorded=runs.list_steps(run))
            pictures[f"watched_{name}"] = (title, figure, caption, recorded.source(run, None))
        below = _answers(run)
    return WatchedContent(said, _buttons(training, outcome, selection), pictures, below, ends=not is_going_on)


def _bar(training: launch.Training, outcome: launch.Outcome) -> str:
    """Return how far a run has come, in words and as a bar."""
    said, run = say.STATES[outcome].format(run=training.run), runs.LOCAL / training.run
    try:
        progress = launch.progress(recorded.manifest(run).config, metric_rows(run))
    except runs.DamagedFile:
        progress = None  # the run has not written its manifest yet
    if progress is None or progress.step == 0:
        return f"{paragraph(f'{said} {say.WARMING}')}<progress value='0'></progress>"
    left = "" if progress.seconds_left is None else f" · {say.LEFT.format(left=duration(progress.seconds_left))}"
    share = min(progress.step / progress.steps, 1.0)
    at = paragraph(f"{said} Step {progress.step} of {progress.steps}{left}")
    return f"{at}<progress value='{share:.4f}'></progress>"


def _buttons(training: launch.Training, outcome: launch.Outcome, selection: Selection) -> dict[str, str]:
    """Return the buttons: what each does → its label."""
    steps, buttons = runs.list_steps(runs.LOCAL / training.run), {}
    if steps and (selection.slug, selection.step) != (training.run, steps[-1]):
        buttons["show"] = say.LAST_BATCH
    if outcome not in GOING_ON:
        buttons["hide"] = say.HIDE
    elif not launch.is_forbidden():
        may_kill = launch.may_kill(training)
        if outcome == "running" or may_kill:
            buttons["stop"] = say.KILL if may_kill else say.STOP
    return buttons


def _pressed(button: str, training: launch.Training) -> None:
    state.press()
    if button == "show":
        state.change(run=training.run, step=LATEST, part=say.PARTS[0])
    elif button == "hide":
        st.session_state[HIDDEN] = training.pid
    else:
        try:
            launch.stop()
        except UsageError as error:
            st.session_state[ERROR] = str(error)


def _train() -> None:
    """Show the form that starts a training run, unless starting is forbidden or a run is in progress."""
    with st.container(key="train"):
        if launch.is_forbidden():
            st.info(plain(say.FORBIDDEN.format(name=launch.FORBID)))
        elif not launch.in_progress():
            st.caption(say.LIVE_HELP)
            with st.container(border=True, key="real_model"):
                st.markdown(f"## {say.REAL}")
                megabytes = real_model_megabytes()
                fetch = say.REAL_FETCH.format(megabytes=megabytes) if megabytes else say.REAL_FETCHED
                st.markdown(plain(say.REAL_IS + fetch))
                st.button(
                    say.REAL_START,
                    key="train_real",
                    type="primary",
                    on_click=_start,
                    args=(real_model_options(), "smollm2"),
                )
            st.markdown(f"## {say.CHOOSE}")
            _form()


def _form() -> None:
    """Show the fields, the command that they make, and the button."""
    values, offered = {}, choices()
    for first, *others in ROWS:
        columns = st.columns([4 - len(others), *(1 for _ in others)])
        for column, name in zip(columns, (first, *others), strict=True):
            with column:
                values[name] = _field(name, offered.get(name))
    try:
        request = TrainRequest(**values)
    except UsageError as error:
        st.error(plain(str(error)))
        return
    st.caption(say.COMMAND)
    options = options_of(request)
    # With the name that the run will have, unless somebody else takes the name first.
    command = launch.train_command([*options, "--run", runs.free_name(request.task)])
    st.code(" ".join(command), language="bash", wrap_lines=True)
    st.button(say.START, key="train_start", on_click=_start, args=(options, request.task))


def _start(options: Sequence[str], task: str) -> None:
    state.press()
    try:
        launch.start(options, task=task)
    except UsageError as error:
        st.session_state[ERROR] = str(error)


def _field(name: str, options: tuple[str, ...] | None) -> str | int | float:
    """Show a list of the options, or without options a number box of the default's type; return the value."""
    label, help = say.FIELDS[name]
    key = f"train_{name}"
    if options is not None:
        return pick(key, label, options, written=preset_label if name == "preset" else str, help=help)
    low, high = LIMITS[name]
    default = getattr(TrainRequest(), name)
    if isinstance(default, int):
        return number(key, label, low, high, help=help)
    return number(key, label, low, high, step=default / 10, format="%g", help=help)
