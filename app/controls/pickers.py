"""The pickers of run, step and preset, which fold to one line, and the line about the state of the run."""

from collections.abc import Mapping
from pathlib import Path

import state
import streamlit as st
from components.links import Link, links
from components.watched import WatchedContent, watch
from data import recorded
from data.configuration import FIRST, SECOND
from data.metric_rows import metric_rows
from data.names import BETWEEN, run_labels, run_title, shown_title
from data.recorded import LATEST, USUAL_RUN, Selection
from text import phrases
from text.formatting import duration, paragraph, plain

from controls import configuration
from controls.widgets import pick
from rlcorr import PRESETS
from rlcorr.command import launch
from rlcorr.records import runs

STATUS = {
    "running": "running",
    "complete": "complete",
    "interrupted": "interrupted before its last step",
    "stopped": "stopped without finishing: its manifest says running, but no file has changed for over a minute",
    "unknown": "status unknown: its manifest cannot be read",
}
CENTERED = (
    "Score centering changes the loss, neither weights nor kept tokens. This page shows the correction without it."
)
COLOURS = (
    "Orange: ratio above 1, or a weight cut at the upper threshold. Blue: ratio below 1, or a weight cut at the lower "
    "one. Green: kept, and your setting. Grey: rejected. Blank: padding."
)
WITH_PRESET = ("bench", "gradient", "tokens", "compare")


def select(all_runs: dict[str, Path]) -> Selection:
    """Return the run and the step that the page shows."""
    slug = state.keep_to("run", [USUAL_RUN, *all_runs])
    slug = recorded.default_run(all_runs, state.get("view")) if slug == USUAL_RUN else slug
    step = state.keep_to("step", recorded.step_options(runs.list_steps(all_runs[slug])))
    return recorded.selected(slug, all_runs[slug], step)


def pick_all(all_runs: dict[str, Path], shown: Selection) -> None:
    """Show one line that says what is open, with the state of the run. The line unfolds the pickers.

    They are run and step, and on a view with a preset the preset; on Compare also that of B.
    """
    view = state.get("view")
    presets = [state.get("preset")] * (view in WITH_PRESET) + [state.get("preset_b")] * (view == "compare")
    titles = [shown_title(state.values(), slot) for slot in (FIRST, SECOND)[: len(presets)]]
    line, at_right = st.columns([2, 1], vertical_alignment="center", gap="small")
    with line.expander(plain(BETWEEN.join([_run_and_step(shown), *_lettered(titles)])), key="open"):
        columns = st.columns([3, 2, 3])
        with columns[0]:
            options = [USUAL_RUN, *all_runs]
            pick("run", "Run", options, written=run_labels(options).__getitem__)
        with columns[1]:
            pick("step", "Step", shown.step_options)
        with columns[2]:
            if presets:
                configuration.preset_box("Preset of A" if len(presets) == 2 else "Preset")
        if view == "compare":
            _boxes_of_b()
    for problem in shown.problems:
        st.warning(plain(problem))
    if any(PRESETS[name].loss.score_centering for name in presets):
        st.info(CENTERED)
    with at_right, st.container(key="run_state"):
        _state_of(shown)


def _lettered(words: list[str]) -> list[str]:
    return words if len(words) < 2 else [f"A: {words[0]}", f"B: {words[1]}"]


def _run_and_step(shown: Selection) -> str:
    title = run_title(shown.slug)
    return title if shown.step is None else f"{title}{BETWEEN}step {shown.step}"


def _boxes_of_b() -> None:
    """Show the picker of B's preset, and the button that exchanges A and B."""
    with st.container(key="second"):
        left, _, right = st.columns([3, 2, 3], vertical_alignment="bottom")
        left.button("Swap A and B", key="swap", on_click=state.swap, width="stretch")
        with right:
            configuration.preset_box("Preset of B", SECOND)


def explain(explanation: str) -> None:
    """Show a box that explains the view."""
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.write(explanation)
        st.caption(COLOURS)


def picked_record(shown: Selection) -> runs.StepRecord | None:
    """Return the selected step. If there is none to show, write why onto the page and return None."""
    if shown.step is None:
        st.info(phrases.NO_STEPS)
        return None
    try:
        return recorded.step(shown.run, shown.step)
    except runs.DamagedFile as error:
        others = ", ".join(str(step) for step in shown.steps if step != shown.step) or "none"
        st.error(plain(f"{error} Other recorded steps: {others}."))
        return None


def _state_of(shown: Selection) -> None:
    """Show the state of the run. While the run grows, this line does too, and offers the newest step."""
    label = run_labels([shown.slug])[shown.slug]
    slug = label.removeprefix(run_title(shown.slug)).removeprefix(BETWEEN)  # "" if the line has it as the title
    offers = state.get("step") == LATEST

    def said(count: int) -> str:
        status, age = recorded.run_status(shown.run)
        # A complete run does not change any more, and its files may be as new as the clone that they came with.
        changed = "" if status == "complete" else f"last change {duration(age)} ago"
        parts = (slug, _recorded_steps(count), STATUS.get(status, status), changed)
        return BETWEEN.join(filter(None, parts))

    def content() -> WatchedContent:
        steps = runs.list_steps(shown.run)
        is_new = offers and steps and (shown.step is None or steps[-1] > shown.step)
        buttons = {"latest": f"Show step {steps[-1]}"} if is_new else {}
        return WatchedContent(paragraph(said(len(steps))), buttons)

    if recorded.run_status(shown.run)[0] == "running":
        watch(content, key="run_state_line", on_press=lambda _: state.press())
    else:
        st.caption(plain(said(len(shown.steps))))


def announce_new_runs(all_runs: Mapping[str, Path], shown: str) -> None:
    """Offer the run that is training, and runs that appeared since the page was opened, to who looks at another one."""
    training = launch.last()
    if training is not None and training.run != shown and launch.in_progress():
        count = max((row["step"] for row in metric_rows(runs.LOCAL / training.run)), default=0)
        text, link = st.columns([4, 1], vertical_alignment="center")
        text.markdown(plain(f"A run is training here: {training.run}, step {count}."))
        with link:
            links(Link("Open it", {"view": "training", "run": training.run}), key="open_training")
    seen = st.session_state.setdefault("seen_runs", set(all_runs))
    seen.add(shown)
    for slug in [slug for slug, path in all_runs.items() if slug not in seen and recorded.has_steps(path)]:
        text, button = st.columns([4, 1], vertical_alignment="center")
        text.info(plain(f"A new run has appeared: {slug}."))
        changes = {"run": slug, "step": LATEST}
        button.button("Show it", key=f"show_{slug}", on_click=state.change, kwargs=changes)
    for sentence in runs.unlisted_runs():
        st.caption(plain(sentence))


def _recorded_steps(count: int) -> str:
    """Return how many steps of a run are recorded.

    >>> _recorded_steps(0), _recorded_steps(1), _recorded_steps(4)
    ('no step recorded yet', '1 step recorded', '4 steps recorded')
    """
    return "no step recorded yet" if count == 0 else f"{count} step{'' if count == 1 else 's'} recorded"
