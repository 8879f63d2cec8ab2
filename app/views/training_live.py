"""A training run next to the app: start it, follow it, show its last batch, and stop it."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st
from components.picture import picture
from data import recorded
from data.names import preset_label
from state import session
from text import training as say
from text.formatting import clipped, number, plain, table

from rlcorr.command import launch
from rlcorr.command.launch import Training
from rlcorr.command.request import LIMITS, REAL_MODEL, TrainRequest, choices, options_of, real_model_megabytes
from rlcorr.errors import UsageError
from rlcorr.figures.training import PANELS, over_steps
from rlcorr.records import runs

ERROR = "live_error"
ROWS = (
    ("preset", "task", "engine"),
    ("dtype", "kv_cache_dtype", "staleness", "temperature"),
    ("learning_rate", "prompts_per_step", "steps", "seed"),
)
"""Fields of the form, row by row. A row has four columns; the title of a preset needs two of them."""


def follow(selection: session.Selection) -> None:
    """Show the training run that is in progress or ended last, wherever it was started."""
    _follow(selection, launch.in_progress())


def train() -> None:
    """Show the form that starts a training run, unless starting is forbidden or a run is in progress."""
    with st.container(key="train"):
        _train()


def _train() -> None:
    if launch.is_forbidden():
        st.info(plain(say.FORBIDDEN.format(name=launch.FORBID)))
    elif launch.in_progress():
        st.info(say.ONE_AT_A_TIME)
        _watch()
    else:
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
    if st.button(say.REAL_START, key="train_real", type="primary"):
        _start(REAL_MODEL, "smollm2")


@st.fragment(run_every=3.0)
def _watch() -> None:
    """Show the curves and answers of the training run in progress. They update by themselves."""
    training = launch.last()
    if training is None:
        return
    run = runs.LOCAL / training.run
    st.markdown(f"##### {plain(say.WATCHED.format(run=training.run))}")
    rows = recorded.metric_rows(run)
    if not rows:
        st.caption(say.NO_STEP_YET)
    else:
        for column, name in zip(st.columns(2), ("reward", "mismatch"), strict=True):
            title, caption = say.CURVES[name]
            figure = over_steps(PANELS[name], {training.run: rows}, at=None, recorded=runs.list_steps(run))
            with column:
                picture(title, figure, key=f"watched_{name}", caption=caption, source=recorded.source(run, None))
    answers_table(run)


def answers_table(run: Path) -> None:
    """Show the greedy answers to the same held-out prompts, one row per evaluation; nothing if none are recorded."""
    answers = recorded.answers(run)
    if not answers:
        return
    prompts = list(dict.fromkeys(clipped(answer.prompt, say.PROMPT_LIMIT) for answer in answers))
    rows: dict[int, dict[str, str]] = {}
    for answer in answers:
        cell = f"{clipped(answer.response, say.ANSWER_LIMIT)}  ({number(answer.reward)})"
        rows.setdefault(answer.step, {})[clipped(answer.prompt, say.PROMPT_LIMIT)] = cell
    st.markdown(f"##### {say.ANSWERS}")
    st.caption(say.ANSWERS_ARE)
    cells = [[str(step), *(row.get(prompt, "") for prompt in prompts)] for step, row in rows.items()]
    st.html(table(["Step", *prompts], cells))


@st.fragment(run_every=2.0)
def _follow(selection: session.Selection, busy: bool) -> None:
    """Show a line about the training run, which updates by itself. The page reruns when a run starts or ends."""
    if launch.in_progress() != busy or st.session_state.pop("live_shown", False):
        st.rerun()
    if ERROR in st.session_state:
        st.error(plain(st.session_state.pop(ERROR)))
    training = launch.last()
    if training is not None:
        _line(training, launch.outcome(training), selection)


def _line(training: Training, outcome: launch.Outcome, selection: session.Selection) -> None:
    if outcome not in ("running", "stopping"):
        if st.session_state.get("live_dismissed") == training.pid:
            return
        (st.error if outcome == "failed" else st.info)(plain(say.STATES[outcome].format(run=training.run)))
        if outcome == "failed":
            st.code(launch.last_lines(training.run), language=None, wrap_lines=True)
    else:
        _bar(training, outcome)
    with st.container(horizontal=True, key="live_buttons"):
        _buttons(training, outcome, selection)


def _bar(training: Training, outcome: launch.Outcome) -> None:
    state = say.STATES[outcome].format(run=training.run)
    run = runs.LOCAL / training.run
    try:
        progress = launch.progress(recorded.manifest(run).config, recorded.metric_rows(run))
    except runs.DamagedFile:
        progress = None  # the run has not written its manifest yet
    if progress is None or progress.step == 0:
        st.progress(0.0, plain(f"{state} {say.WARMING}"))
        return
    left = "" if progress.seconds_left is None else f" · {say.LEFT.format(left=say.duration(progress.seconds_left))}"
    share = min(progress.step / progress.steps, 1.0)
    st.progress(share, plain(f"{state} Step {progress.step} of {progress.steps}{left}"))


def _buttons(training: Training, outcome: launch.Outcome, selection: session.Selection) -> None:
    steps = runs.list_steps(runs.LOCAL / training.run)
    if steps and (selection.slug, selection.step) != (training.run, steps[-1]):
        st.button(say.LAST_BATCH, key="live_show", on_click=_show, args=(training.run,))
    if outcome not in ("running", "stopping"):
        st.button(say.HIDE, key="live_hide", on_click=_hide, args=(training.pid,))
    elif not launch.is_forbidden():
        may_kill = launch.may_kill(training)
        waiting = outcome == "stopping" and not may_kill
        st.button(say.KILL if may_kill else say.STOP, key="live_stop", on_click=_stop, disabled=waiting)


def _show(run: str) -> None:
    """Show the run on the part of the page that shows runs."""
    session.put_run(run)
    st.session_state["part"] = say.PARTS[0]
    st.session_state["live_shown"] = True  # the pickers are outside the fragment


def _hide(pid: int) -> None:
    st.session_state["live_dismissed"] = pid


def _stop() -> None:
    try:
        launch.stop()
    except UsageError as error:
        st.session_state[ERROR] = str(error)


@st.fragment
def _form() -> None:
    """Show the fields, the command that they make, and the button."""
    options = choices()
    values = {}
    for first, *others in ROWS:
        columns = st.columns([4 - len(others), *(1 for _ in others)])
        for column, name in zip(columns, (first, *others), strict=True):
            with column:
                values[name] = _field(name, options.get(name))
    session.remember({f"train_{name}": value for name, value in values.items()})
    try:
        request = TrainRequest(**values)
    except UsageError as error:
        st.error(plain(str(error)))
        return
    st.caption(say.COMMAND)
    st.code(_command(request), language="bash", wrap_lines=True)
    if st.button(say.START, key="train_start"):
        _start(options_of(request), request.task)


def _start(options: Sequence[str], task: str) -> None:
    try:
        launch.start(options, task=task)
    except UsageError as error:
        st.session_state[ERROR] = str(error)
    st.rerun()


def _command(request: TrainRequest) -> str:
    """Return the command with the name that the run will have, unless somebody else takes the name first."""
    named = [*options_of(request), "--run", runs.free_name(request.task)]
    return launch.as_typed(launch.train_command(named))


def _field(name: str, options: tuple[str, ...] | None) -> str | int | float:
    """Show a list of the options, or without options a number box of the default's type; return the value."""
    label, help = say.FIELDS[name]
    default, key = getattr(TrainRequest(), name), f"train_{name}"
    if options is not None:
        written = preset_label if name == "preset" else str
        return st.selectbox(label, options, index=options.index(default), format_func=written, key=key, help=help)
    low, high = LIMITS[name]
    if isinstance(default, int):
        return st.number_input(label, int(low), int(high), default, key=key, help=help)
    return st.number_input(
        label, float(low), float(high), float(default), float(default) / 10, "%g", key=key, help=help
    )
