"""A training run next to the app: start it, follow it, show its last batch, and stop it."""

import html
from collections.abc import Sequence
from pathlib import Path

import state
import streamlit as st
from components.watched import WatchedContent, watch
from controls.choosing import number, pick
from data import recorded
from data.names import preset_label
from data.selection import LATEST, Selection
from text import training as say
from text.formatting import clipped, paragraph, plain, table
from text.formatting import number as written

from rlcorr.command import launch
from rlcorr.command.launch import Outcome, Training
from rlcorr.command.request import LIMITS, REAL_MODEL, TrainRequest, choices, options_of, real_model_megabytes
from rlcorr.errors import UsageError
from rlcorr.figures.training import PANELS, over_steps
from rlcorr.records import runs

ERROR, HIDDEN = "live_error", "live_dismissed"
"""Keys of the session: why a run could not be started or stopped, and the process of an ended run that was hidden."""
ROWS = (
    ("preset", "task", "engine"),
    ("dtype", "kv_cache_dtype", "staleness", "temperature"),
    ("learning_rate", "prompts_per_step", "steps", "seed"),
)
"""Fields of the form, row by row. A row has four columns; the title of a preset needs two of them."""
GOING_ON = ("running", "stopping")


def follow(selection: Selection, *, with_curves: bool) -> None:
    """Show the training run that is in progress or ended last, wherever it was started, and its curves if asked to."""
    if ERROR in st.session_state:
        st.error(plain(st.session_state.pop(ERROR)))
    training = launch.last()
    if training is None:
        return
    if launch.outcome(training) not in GOING_ON and st.session_state.get(HIDDEN) == training.pid:
        return

    def content() -> WatchedContent:
        return _content(launch.last() or training, selection, with_curves)  # somebody may have asked it to stop

    watch(content, key="live_run", on_press=lambda button: _pressed(button, training))


def _content(training: Training, selection: Selection, with_curves: bool) -> WatchedContent:
    outcome, run = launch.outcome(training), runs.LOCAL / training.run
    is_going_on = outcome in GOING_ON
    if is_going_on:
        said = _bar(training, outcome) + (paragraph(say.ONE_AT_A_TIME) if with_curves else "")
    else:
        said = _note(training, outcome)
    pictures, below = {}, ""
    if with_curves:
        rows = recorded.metric_rows(run)
        said += f"<h3>{html.escape(say.WATCHED.format(run=training.run))}</h3>"
        said += "" if rows else paragraph(say.NO_STEP_YET)
        for name in ("reward", "mismatch") if rows else ():
            title, caption = say.CURVES[name]
            figure = over_steps(PANELS[name], {training.run: rows}, at=None, recorded=runs.list_steps(run))
            pictures[f"watched_{name}"] = (title, figure, caption, recorded.source(run, None))
        below = answers_table(run)
    return WatchedContent(said, _buttons(training, outcome, selection), pictures, below, ends=not is_going_on)


def _note(training: Training, outcome: Outcome) -> str:
    """Return how a run has ended, with the last lines of its log if it failed."""
    failed = outcome == "failed"
    log = f"<pre>{html.escape(launch.last_lines(training.run))}</pre>" if failed else ""
    said = paragraph(say.STATES[outcome].format(run=training.run))
    return f"<div class='rl-note-box{' failed' if failed else ''}'>{said}{log}</div>"


def _bar(training: Training, outcome: Outcome) -> str:
    """Return how far a run has come, in words and as a bar."""
    said, run = say.STATES[outcome].format(run=training.run), runs.LOCAL / training.run
    try:
        progress = launch.progress(recorded.manifest(run).config, recorded.metric_rows(run))
    except runs.DamagedFile:
        progress = None  # the run has not written its manifest yet
    if progress is None or progress.step == 0:
        return f"{paragraph(f'{said} {say.WARMING}')}<progress value='0'></progress>"
    left = "" if progress.seconds_left is None else f" · {say.LEFT.format(left=say.duration(progress.seconds_left))}"
    share = min(progress.step / progress.steps, 1.0)
    at = paragraph(f"{said} Step {progress.step} of {progress.steps}{left}")
    return f"{at}<progress value='{share:.4f}'></progress>"


def _buttons(training: Training, outcome: Outcome, selection: Selection) -> dict[str, str]:
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


def _pressed(button: str, training: Training) -> None:
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


def train() -> None:
    """Show the form that starts a training run, unless starting is forbidden or a run is in progress."""
    with st.container(key="train"):
        if launch.is_forbidden():
            st.info(plain(say.FORBIDDEN.format(name=launch.FORBID)))
        elif not launch.in_progress():
            st.caption(say.LIVE_HELP)
            with st.container(border=True, key="real_model"):
                _real_model()
            st.markdown(f"##### {say.CHOOSE}")
            _form()


def _real_model() -> None:
    """Show what training a real language model takes, and a button that starts it."""
    st.markdown(f"##### {say.REAL}")
    megabytes = real_model_megabytes()
    st.markdown(plain(say.REAL_IS + (say.REAL_FETCH.format(megabytes=megabytes) if megabytes else say.REAL_FETCHED)))
    st.button(say.REAL_START, key="train_real", type="primary", on_click=_start, args=(REAL_MODEL, "smollm2"))


def answers_table(run: Path) -> str:
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


def _form() -> None:
    """Show the fields, the command that they make, and the button."""
    options = choices()
    values = {}
    for first, *others in ROWS:
        columns = st.columns([4 - len(others), *(1 for _ in others)])
        for column, name in zip(columns, (first, *others), strict=True):
            with column:
                values[name] = _field(name, options.get(name))
    try:
        request = TrainRequest(**values)
    except UsageError as error:
        st.error(plain(str(error)))
        return
    st.caption(say.COMMAND)
    st.code(_command(request), language="bash", wrap_lines=True)
    st.button(say.START, key="train_start", on_click=_start, args=(options_of(request), request.task))


def _start(options: Sequence[str], task: str) -> None:
    state.press()
    try:
        launch.start(options, task=task)
    except UsageError as error:
        st.session_state[ERROR] = str(error)


def _command(request: TrainRequest) -> str:
    """Return the command with the name that the run will have, unless somebody else takes the name first."""
    named = [*options_of(request), "--run", runs.free_name(request.task)]
    return launch.as_typed(launch.train_command(named))


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
