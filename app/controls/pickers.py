"""The pickers of run and step, and what has become of the run since the page was drawn."""

import time
from pathlib import Path

import streamlit as st
from data import recorded
from state import notices, session
from streamlit.delta_generator import DeltaGenerator
from text import phrases
from text.formatting import ago, plain

from rlcorr.errors import unknown
from rlcorr.records import runs

RELOAD_EVERY = 15.0
"""Seconds: drawing a page for every step would slow the training that shares its cores with the browser."""


def pick(all_runs: dict[str, Path], *, sketched: bool = False) -> session.Selection:
    """Show the pickers of run and step, and the state of the run beside them. `sketched`: a run with a sketch of the
    gradient is shown first."""
    left, right, beside = st.columns([2, 1, 2], vertical_alignment="bottom")
    options = [session.NEWEST, *all_runs]
    by_itself = recorded.shown_first(all_runs, sketched=sketched)
    notices.check_url("run", options, lambda raw: f"{unknown('run', raw, all_runs)} Showing {by_itself}.")
    wanted = left.selectbox("Run", options, key="run", bind="query-params", on_change=notices.clear, args=("run",))
    slug = by_itself if wanted == session.NEWEST else wanted
    steps = runs.list_steps(all_runs[slug])
    step = _pick_step(right, all_runs[slug], steps)
    chosen = session.Selection(slug, all_runs[slug], tuple(steps), step)
    with beside:
        watch(world(all_runs, chosen.run), chosen, time.monotonic())
    return chosen


def pick_second(all_runs: dict[str, Path], first: session.Selection) -> session.Selection:
    """The run and step to compare with; by default the first other run that has a step."""
    left, right, _ = st.columns([2, 1, 2], vertical_alignment="bottom")
    others = [slug for slug, path in all_runs.items() if slug != first.slug and recorded.has_steps(path)]
    options, another = [session.ANOTHER, *all_runs], (others or [first.slug])[0]
    notices.check_url("run_b", options, lambda raw: f"{unknown('run', raw, all_runs)} Showing {another}.")
    session.restore("run_b")
    wanted = left.selectbox("Run B", options, key="run_b", bind="query-params", on_change=_run_b_changed)
    st.session_state["last_run_b"] = wanted
    slug = another if wanted == session.ANOTHER else wanted
    steps = runs.list_steps(all_runs[slug])
    session.restore("step_b")
    step = _pick_step(right, all_runs[slug], steps, "Step B", "step_b")
    st.session_state["last_step_b"] = st.session_state["step_b"]
    return session.Selection(slug, all_runs[slug], tuple(steps), step)


def _run_b_changed() -> None:
    notices.clear("run_b")
    notices.clear("step_b")


def _pick_step(
    place: DeltaGenerator, run: Path, steps: list[int], label: str = "Step", key: str = "step"
) -> int | None:
    options = [session.LATEST, *map(str, reversed(steps))]
    there_are = f"{len(steps)} recorded, {steps[0]} to {steps[-1]}" if steps else "none recorded yet"
    notices.check_url(key, options, lambda raw: f"This run has no step {raw!r} ({there_are}). Showing the latest.")
    chosen = place.selectbox(label, options, key=key, bind="query-params", on_change=notices.clear, args=(key,))
    if chosen != session.LATEST:
        return int(chosen)
    number, problems = recorded.latest(run, steps)
    for problem in problems:
        shown = f"Showing step {number}, the newest that can be read." if number is not None else "No step can be read."
        st.warning(plain(f"{problem} {shown}"))
    return number


def explained_record(chosen: session.Selection, explanation: str) -> runs.StepRecord | None:
    """The chosen step under a box that explains the view; None, with a sentence, where there is none to show."""
    with st.expander("What is this?", key="what_is_this"):
        st.write(explanation)
        st.caption(phrases.COLOURS)
    return picked_record(chosen)


def picked_record(chosen: session.Selection) -> runs.StepRecord | None:
    """The chosen step; None, with a sentence, where there is none to show."""
    if chosen.step is None:
        st.info(phrases.NO_STEPS)
        return None
    return chosen_record(chosen, chosen.step)


def chosen_record(chosen: session.Selection, step: int) -> runs.StepRecord | None:
    """The chosen step; if it is damaged, a sentence on the page that says so, and None."""
    try:
        return recorded.step(chosen.run, step)
    except runs.DamagedFile as error:
        others = ", ".join(str(s) for s in chosen.steps if s != step) or "none"
        st.error(plain(f"{error} Other recorded steps: {others}."))
        return None


@st.fragment(run_every=2.0)
def watch(seen: tuple, chosen: session.Selection | None, drawn: float) -> None:
    """Reload the page when a run has appeared, now and then while the shown one grows, and when it missed a choice of
    the pickers; otherwise cost a few stats every two seconds. `drawn` is when the page was drawn, on time.monotonic."""
    all_runs = recorded.all_runs()
    now = world(all_runs, chosen.run if chosen else None)
    has_grown = now[1] != seen[1] and time.monotonic() - drawn > RELOAD_EVERY
    if now[0] != seen[0] or has_grown or session.differs_from_page():
        st.rerun()
    if chosen is not None:
        life = recorded.life(chosen.run)
        shown = f"step {chosen.step}, {len(chosen.steps)} recorded" if chosen.step is not None else "no step to show"
        # A complete run changes no more: its files are as old as the folder that they were copied to.
        changed = "" if life.status == "complete" else f" · last change {ago(life.age)}"
        st.caption(plain(f"{chosen.slug} · {shown} · {phrases.STATUS.get(life.status, life.status)}{changed}"))


def world(all_runs: dict[str, Path], run: Path | None) -> tuple:
    """What a page depends on: which runs exist and have steps, and the pulse of the one that is shown."""
    return tuple((slug, recorded.has_steps(path)) for slug, path in all_runs.items()), run and recorded.pulse(run)


def announce_new_runs(all_runs: dict[str, Path], shown: str) -> None:
    """Offer runs that appeared since the page was opened to somebody who is looking at another one."""
    seen = st.session_state.setdefault("seen_runs", set(all_runs))
    seen.add(shown)
    for slug in [slug for slug, path in all_runs.items() if slug not in seen and recorded.has_steps(path)]:
        text, button = st.columns([4, 1], vertical_alignment="center")
        text.info(plain(f"A new run has appeared: {slug}."))
        button.button("Show it", key=f"show_{slug}", on_click=show_run, args=(slug,))


def show_run(slug: str) -> None:
    """As if it had been picked, with its latest step."""
    st.session_state["run"] = slug
    st.session_state["step"] = session.LATEST


def show_step(step: int) -> None:
    """As if it had been picked."""
    st.session_state["step"] = str(step)
    notices.clear("step")
