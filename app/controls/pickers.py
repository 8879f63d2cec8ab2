"""The pickers of run and step, and the line about the state of the run."""

import time
from pathlib import Path

import streamlit as st
from data import recorded
from data.names import run_labels
from state import address, notices, session
from streamlit.delta_generator import DeltaGenerator
from text import phrases
from text.formatting import ago, plain

from rlcorr.errors import unknown
from rlcorr.records import runs

RELOAD_EVERY = 15.0
"""Seconds. Redrawing the page for every step would slow a training run on the same cores."""


def pick(all_runs: dict[str, Path], *, sketched: bool = False) -> session.Selection:
    """Show the pickers of run and step, and the state of the run. `sketched`: prefer a run with gradient sketches."""
    left, right, state = st.columns([2, 1, 2], vertical_alignment="bottom")
    options = [session.NEWEST, *all_runs]
    default = recorded.default_run(all_runs, sketched=sketched)
    named = address.one_of(options, lambda raw: f"{unknown('run', raw, all_runs)} Showing {default}.")
    is_new = address.restore("run", session.NEWEST, named)
    label = run_labels(options).__getitem__
    wanted = left.selectbox("Run", options, key="run", format_func=label, on_change=notices.clear, args=("run",))
    address.say("run", wanted, None)  # always in the address, which is complete with it
    slug = default if wanted == session.NEWEST else wanted
    steps = runs.list_steps(all_runs[slug])
    step = _pick_step(right, all_runs[slug], steps)
    selection = session.Selection(slug, all_runs[slug], tuple(steps), step)
    if is_new:  # otherwise the next line would take the new values for choices that the page has missed
        session.remember_pickers()
    with state:
        watch(page_inputs(all_runs, selection.run), selection, time.monotonic())
    return selection


def pick_second(all_runs: dict[str, Path], first: session.Selection) -> session.Selection:
    """Show the pickers of run B and its step, and return what they select. Default: the first other run with a step."""
    left, right, _ = st.columns([2, 1, 2], vertical_alignment="bottom")
    others = [slug for slug, path in all_runs.items() if slug != first.slug and recorded.has_steps(path)]
    options, another = [session.ANOTHER, *all_runs], (others or [first.slug])[0]
    named = address.one_of(options, lambda raw: f"{unknown('run', raw, all_runs)} Showing {another}.")
    address.restore("run_b", session.ANOTHER, named)
    label = run_labels(options).__getitem__
    wanted = left.selectbox("Run B", options, key="run_b", format_func=label, on_change=_run_b_changed)
    address.say("run_b", wanted, session.ANOTHER)
    slug = another if wanted == session.ANOTHER else wanted
    steps = runs.list_steps(all_runs[slug])
    step = _pick_step(right, all_runs[slug], steps, "Step B", "step_b")
    return session.Selection(slug, all_runs[slug], tuple(steps), step)


def _run_b_changed() -> None:
    notices.clear("run_b")
    notices.clear("step_b")


def _pick_step(
    column: DeltaGenerator, run: Path, steps: list[int], label: str = "Step", key: str = "step"
) -> int | None:
    options = [session.LATEST, *map(str, reversed(steps))]
    recorded_steps = f"{len(steps)} recorded, {steps[0]} to {steps[-1]}" if steps else "none recorded yet"
    sentence = "This run has no step {raw!r} ({recorded_steps}). Showing the latest."
    named = address.one_of(options, lambda raw: sentence.format(raw=raw, recorded_steps=recorded_steps))
    address.restore(key, session.LATEST, named)
    picked = column.selectbox(label, options, key=key, on_change=notices.clear, args=(key,))
    address.say(key, picked, session.LATEST)
    if picked != session.LATEST:
        return int(picked)
    number, problems = recorded.latest(run, steps)
    for problem in problems:
        shown = f"Showing step {number}, the newest that can be read." if number is not None else "No step can be read."
        st.warning(plain(f"{problem} {shown}"))
    return number


def explained_record(selection: session.Selection, explanation: str) -> runs.StepRecord | None:
    """Show a box that explains the view, and return the selected step as `picked_record` does."""
    with st.expander(phrases.WHAT_IS_THIS, key="what_is_this"):
        st.write(explanation)
        st.caption(phrases.COLOURS)
    return picked_record(selection)


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
    if now[0] != seen[0] or has_grown or session.differs_from_page():
        st.rerun()
    if selection is not None:
        state, steps = recorded.run_status(selection.run), len(selection.steps)
        shown = f"step {selection.step}, {steps} recorded" if selection.step is not None else "no step to show"
        # A complete run does not change any more, and its files may be as new as the clone that they came with.
        changed = "" if state.status == "complete" else f" · last change {ago(state.age)}"
        label = run_labels([selection.slug])[selection.slug]
        st.caption(plain(f"{label} · {shown} · {phrases.STATUS.get(state.status, state.status)}{changed}"))


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
        button.button("Show it", key=f"show_{slug}", on_click=show_run, args=(slug,))


def show_run(slug: str) -> None:
    """Select this run as its picker would, with its latest step."""
    st.session_state["run"] = slug
    st.session_state["step"] = session.LATEST


def show_step(step: int) -> None:
    """Select this step as its picker would."""
    st.session_state["step"] = str(step)
    notices.clear("step")
