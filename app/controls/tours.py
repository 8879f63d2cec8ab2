"""The strip of a guided tour at the top of a page: what to do, which steps are done, and how to go on or leave."""

import html

import state
import streamlit as st
from components.links import Link, links, show_me
from text.tours import TOURS, Step, Tour

# The strip stays in sight at the top. On a phone a slider has the top, and the strip the lower edge.
LIGHT = """<style>
:is({control}) {{ outline: 3px solid #3f9c7d; outline-offset: 1px; border-radius: 6px }}
</style>"""


def show() -> None:
    """Show the strip of the tour that is on, if one is, and light up the control of its step until the step is done."""
    tour, view = TOURS.get(state.get("tour")), state.get("view")
    if tour is None:
        st.container(key="tour")
        return
    index = min(state.get("tour_step"), len(tour.steps)) - 1
    step, is_here = tour.steps[index], tour.steps[index].view == view
    if is_here and step.is_done(state.texts()):
        state.change(tour_done="".join(sorted({*state.get("tour_done"), str(index + 1)})))
    done = {int(number) - 1 for number in state.get("tour_done")}
    is_lit = is_here and index not in done and step.control
    if is_lit:
        st.html(LIGHT.format(control=step.control))
    with st.container(key="tour"):
        _strip(tour, index, done, view)


def _strip(tour: Tour, index: int, done: set[int], view: str) -> None:
    step = tour.steps[index]
    where = f"{tour.title} · step {index + 1} of {len(tour.steps)}"
    marks = ""
    for number in range(len(tour.steps)):
        current, mark = " aria-current='step'" * (number == index), "✓" if number in done else number + 1
        marks += f"<li{current} aria-label='{number + 1}, {'done' if number in done else 'to do'}'>{mark}</li>"
    st.html(f"<div class='rl-tour'><strong>{html.escape(where)}</strong><ol>{marks}</ol></div>")
    is_open = state.get("tour_open") == index + 1
    st.markdown(f"{step.do} **{step.seen}**" if is_open else step.do)
    with st.container(horizontal=True, vertical_alignment="center"):
        if not is_open:  # a class is asked first
            st.button("Reveal", key="tour_reveal", on_click=state.change, kwargs={"tour_open": index + 1})
        if step.view != view:
            _go("Go to this step", step, index, view)
        elif step.control:
            show_me("Show me", step.control, key="tour_show_me")
        if index > 0:
            _go("Back", tour.steps[index - 1], index - 1, view)
        if index + 1 < len(tour.steps):
            _go("Next", tour.steps[index + 1], index + 1, view, is_main=index in done)
        label, kind = ("Finish", "primary") if len(done) == len(tour.steps) else ("Leave the tour", "tertiary")
        st.button(label, key="tour_leave", type=kind, on_click=state.change, kwargs={"tour": ""})


def _go(label: str, step: Step, index: int, view: str, *, is_main: bool = False) -> None:
    """Show a button to a step of this page, or a link to one of another page."""
    if step.view == view:
        kind, changes = "primary" if is_main else "secondary", {"tour_step": index + 1}
        st.button(label, key=f"tour_to_{index}", type=kind, on_click=state.change, kwargs=changes)
        return
    now = state.texts()  # what is open already stays as the reader has left it, with its thresholds
    opens = {name: value for name, value in step.query.items() if now.get(name) != value}
    to = {**opens, "view": step.view, "tour_step": str(index + 1)}
    with st.container(key=f"tour_link_{index}", width="content"):
        links(Link(label, to), key=f"tour_link_to_{index}")
