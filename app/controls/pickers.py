"""The pickers of run, step and preset, which fold to one line, and the line about the state of the run."""

import time
from collections.abc import Sequence
from pathlib import Path

import streamlit as st
from data import recorded
from data.names import BETWEEN, preset_title, run_labels, run_title
from state import address, fields, notices, session
from text import compare as say
from text import phrases
from text.formatting import ago, plain

from controls import configuration
from rlcorr import PRESETS
from rlcorr.errors import unknown
from rlcorr.records import runs

WITH_PRESET = ("bench", "gradient", "tokens", "compare")
# While the line is unfolded, it has the whole width, and the state of the run is below it.
# A list closes when something around it scrolls. What is hidden scrolls while it unfolds; what is clipped does not.
STYLE = """<style>
.st-key-open details { overflow: clip !important }
.st-key-pickers [data-testid="stColumn"]:has(.st-key-open details[open]) { flex: 1 1 100% }
.st-key-pickers [data-testid="stVerticalBlock"] { gap: 0.5rem }
.st-key-open summary { padding-top: 0.3rem; padding-bottom: 0.3rem; min-height: 0 }
.st-key-run_state [data-testid="stCaptionContainer"] { margin: 0 }
</style>"""
RELOAD_EVERY = 15.0
"""Seconds. Redrawing the page for every step would slow a training run on the same cores."""


def pick(all_runs: dict[str, Path], view: str) -> session.Selection:
    """Show one line that says what is open, with the state of the run. The line unfolds the pickers.

    They are run and step, and on a view with a preset the preset; on Compare also those of B.
    """
    # Gradient prefers a run with sketches. Rules that reject answers keep nothing of the example of the other views.
    example = recorded.SKETCHED_EXAMPLE if view == "compare" else recorded.EXAMPLE
    default = recorded.default_run(all_runs, sketched=view == "gradient", example=example)
    options = [session.NEWEST, *all_runs]
    named = address.one_of(options, lambda raw: f"{unknown('run', raw, all_runs)} Showing {default}.")
    address.restore("run", session.NEWEST, named)
    wanted = _picked("run", options)
    selection, problems = _selected(all_runs, default if wanted == session.NEWEST else wanted, "step")
    second = _second(all_runs, selection) if _compares_runs(view) else None
    presets = _presets(view)
    line, state = st.columns([2, 1], vertical_alignment="center", gap="small")
    with line.expander(_words(selection, second, presets), key="open"):
        columns = st.columns([3, 2, 3])
        with columns[0]:
            _run_box("Run", options, "run", session.NEWEST)
        with columns[1]:
            _step_box("Step", selection, "step")
        with columns[2]:
            if presets:
                configuration.preset_box("Preset of A" if len(presets) == 2 else "Preset")
        if view == "compare":
            _boxes_of_b(all_runs, selection, second)
    for problem in problems:
        st.warning(plain(problem))
    if any(PRESETS[name].loss.score_centering for name in presets):
        st.info(phrases.CENTERED)
    session.select_second(second)
    with state, st.container(key="run_state"):
        watch(page_inputs(all_runs, selection.run), selection, time.monotonic())
    st.html(STYLE)
    return selection


def _presets(view: str) -> list[str]:
    """Return the presets that this view shows: none, one, or on Compare those of A and B."""
    if view not in WITH_PRESET:
        return []
    first = configuration.restore_preset()
    if view != "compare" or _compares_runs(view):
        return [first]
    return [first, configuration.restore_preset(fields.SECOND)]


def _compares_runs(view: str) -> bool:
    return view == "compare" and address.peek("compare", say.CONFIGURATIONS, str) == say.RUNS


def _words(selection: session.Selection, second: session.Selection | None, presets: list[str]) -> str:
    """Return what is open, for the line that unfolds the pickers."""
    a = _run_and_step(selection)
    words = [f"A: {a}", f"B: {_run_and_step(second)}"] if second else [a]
    titles = [preset_title(name) for name in presets]
    words += [f"A: {titles[0]}", f"B: {titles[1]}"] if len(titles) == 2 else titles
    return plain(BETWEEN.join(words))


def _run_and_step(selection: session.Selection) -> str:
    title = run_title(selection.slug)
    return title if selection.step is None else f"{title}{BETWEEN}step {selection.step}"


def _second(all_runs: dict[str, Path], first: session.Selection) -> session.Selection:
    """Return the selected run B and its step. Default: the first other run with a step."""
    others = [slug for slug, path in all_runs.items() if slug != first.slug and recorded.has_steps(path)]
    options, another = [session.ANOTHER, *all_runs], (others or [first.slug])[0]
    named = address.one_of(options, lambda raw: f"{unknown('run', raw, all_runs)} Showing {another}.")
    address.restore("run_b", session.ANOTHER, named)
    wanted = _picked("run_b", options)
    selection, problems = _selected(all_runs, another if wanted == session.ANOTHER else wanted, "step_b")
    for problem in problems:
        st.warning(plain(problem))
    return selection


def _boxes_of_b(all_runs: dict[str, Path], first: session.Selection, second: session.Selection | None) -> None:
    """Show the pickers of B, and the button that exchanges A and B."""
    with st.container(key="second"):
        columns = st.columns([3, 2, 3], vertical_alignment="bottom")
        with columns[0]:
            if second is None:
                st.button(say.SWAP, key="swap", on_click=_swap_configurations, width="stretch")
            else:
                _run_box("Run B", [session.ANOTHER, *all_runs], "run_b", session.ANOTHER)
        with columns[1]:
            if second is not None:
                _step_box("Step B", second, "step_b")
        with columns[2]:
            if second is None:
                configuration.preset_box("Preset of B", fields.SECOND)
            else:
                st.button(say.SWAP, key="swap_runs", on_click=_swap_runs, args=(first, second), width="stretch")


def _swap_configurations() -> None:
    session.put(preset=st.session_state["preset_b"], preset_b=st.session_state["preset"])
    fields.swap()


def _swap_runs(a: session.Selection, b: session.Selection) -> None:
    session.put(run=b.slug, step=_step_of(b), run_b=a.slug, step_b=_step_of(a))
    for key in ("run", "step", "run_b", "step_b"):
        notices.clear(key)


def _step_of(selection: session.Selection) -> str:
    return session.LATEST if selection.step is None else str(selection.step)


def _run_box(label: str, options: list[str], key: str, default: str) -> None:
    labels = run_labels(options)
    step_key = key.replace("run", "step")
    picked = st.selectbox(
        label, options, key=key, format_func=labels.__getitem__, on_change=_run_changed, args=(key, step_key)
    )
    address.say(
        key, picked, None if key == "run" else default
    )  # `run` is always there: the address is complete with it


def _run_changed(key: str, step_key: str) -> None:
    notices.clear(key)
    if key != "run":
        notices.clear(step_key)


def _selected(all_runs: dict[str, Path], slug: str, key: str) -> tuple[session.Selection, list[str]]:
    """Return the run with the step that its picker names, and sentences about steps that cannot be read."""
    steps = runs.list_steps(all_runs[slug])
    recorded_steps = f"{len(steps)} recorded, {steps[0]} to {steps[-1]}" if steps else "none recorded yet"
    sentence = "This run has no step {raw!r} ({recorded_steps}). Showing the latest."
    options = _step_options(steps)
    named = address.one_of(options, lambda raw: sentence.format(raw=raw, recorded_steps=recorded_steps))
    address.restore(key, session.LATEST, named)
    picked = _picked(key, options)
    if picked != session.LATEST:
        return session.Selection(slug, all_runs[slug], tuple(steps), int(picked)), []
    number, problems = recorded.latest(all_runs[slug], steps)
    shown = f"Showing step {number}, the newest that can be read." if number is not None else "No step can be read."
    return session.Selection(slug, all_runs[slug], tuple(steps), number), [f"{problem} {shown}" for problem in problems]


def _picked(key: str, options: list[str]) -> str:
    """Return the value of a picker that is drawn later: the first option if it is gone, as in Streamlit."""
    picked = st.session_state[key]
    return picked if picked in options else options[0]


def _step_options(steps: Sequence[int]) -> list[str]:
    return [session.LATEST, *map(str, reversed(steps))]


def _step_box(label: str, selection: session.Selection, key: str) -> None:
    picked = st.selectbox(label, _step_options(selection.steps), key=key, on_change=notices.clear, args=(key,))
    address.say(key, picked, session.LATEST)


def explain(explanation: str) -> None:
    """Show a box that explains the view."""
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.write(explanation)
        st.caption(phrases.COLOURS)


def picked_record(selection: session.Selection) -> runs.StepRecord | None:
    """Return the selected step. If there is none to show, write why onto the page and return None."""
    if selection.step is None:
        st.info(phrases.NO_STEPS)
        return None
    return record_of(selection, selection.step)


def record_of(selection: session.Selection, step: int) -> runs.StepRecord | None:
    """Return a step of the selected run. If it is damaged, write that onto the page and return None."""
    try:
        return recorded.step(selection.run, step)
    except runs.DamagedFile as error:
        others = ", ".join(str(s) for s in selection.steps if s != step) or "none"
        st.error(plain(f"{error} Other recorded steps: {others}."))
        return None


@st.fragment(run_every=2.0)
def watch(seen: tuple, selection: session.Selection | None, drawn_at: float) -> None:
    """Show the state of the run, and reload the page if something that it depends on has changed.

    The page is reloaded if a run has appeared, if it missed a choice of the pickers, and every `RELOAD_EVERY` seconds
    while the shown run grows. Otherwise this costs a few calls of stat every two seconds.

    Args:
        seen: What `page_inputs` returned when the page was drawn.
        selection: The selected run and step.
        drawn_at: When the page was drawn, on time.monotonic.
    """
    all_runs = recorded.all_runs()
    now = page_inputs(all_runs, selection.run if selection else None)
    has_grown = now[1] != seen[1] and time.monotonic() - drawn_at > RELOAD_EVERY
    if now[0] != seen[0] or has_grown or (session.runs_alone() and session.differs_from_page()):
        st.rerun()
    if selection is not None:
        state, count = recorded.run_status(selection.run), len(selection.steps)
        # A complete run does not change any more, and its files may be as new as the clone that they came with.
        changed = "" if state.status == "complete" else f"last change {ago(state.age)}"
        label = run_labels([selection.slug])[selection.slug]
        slug = label.removeprefix(run_title(selection.slug)).removeprefix(BETWEEN)  # "" if the line has it as the title
        parts = (slug, phrases.recorded_steps(count), phrases.STATUS.get(state.status, state.status), changed)
        st.caption(plain(BETWEEN.join(filter(None, parts))))


def page_inputs(all_runs: dict[str, Path], run: Path | None) -> tuple:
    """Return what a page depends on: which runs exist and have steps, and the change stamp of the shown run."""
    return tuple((slug, recorded.has_steps(path)) for slug, path in all_runs.items()), run and recorded.change_stamp(
        run
    )


def announce_new_runs(all_runs: dict[str, Path], shown: str) -> None:
    """Offer runs that appeared since the page was opened to somebody who is looking at another one."""
    seen = st.session_state.setdefault("seen_runs", set(all_runs))
    seen.add(shown)
    for slug in [slug for slug, path in all_runs.items() if slug not in seen and recorded.has_steps(path)]:
        text, button = st.columns([4, 1], vertical_alignment="center")
        text.info(plain(f"A new run has appeared: {slug}."))
        button.button("Show it", key=f"show_{slug}", on_click=session.put_run, args=(slug,))


def show_step(step: int) -> None:
    """Select this step as its picker would."""
    session.put(step=str(step))
    notices.clear("step")
