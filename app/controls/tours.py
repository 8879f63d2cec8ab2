"""The strip of a guided tour at the top of a page: what to do, which steps are done, and how to go on or leave."""

import html

import streamlit as st
from components.show_me import show_me
from state import address, navigation, notices
from state.navigation import TOUR, TOUR_DONE, TOUR_STEP
from streamlit.delta_generator import DeltaGenerator
from text import tours as say
from text.formatting import plain
from text.tours import TOURS, Step, Tour

from rlcorr.errors import UsageError, unknown

PLACE = "tour"
"""Key of the strip. It stays in sight at the top. On a phone a slider has the top, and the strip the lower edge."""
STYLE = """<style>
.st-key-tour:has(.rl-tour) { padding: 0.5rem 0.9rem; gap: 0.4rem; border: 1px solid #3a7ca5; border-radius: 8px;
  background: light-dark(#ffffff, #14181d) }
:root:not(:has(.rl-controls)) [data-testid="stLayoutWrapper"]:has(> .st-key-tour) {
  position: sticky; top: 3.75rem; z-index: 7; background: light-dark(#ffffff, #14181d) }
@media (max-width: 640px) {
  .st-key-tour:has(.rl-tour) { padding: 0.4rem 0.75rem; gap: 0.1rem }
  :root:has(.rl-controls):not(:has(.st-key-tokens_close button:enabled))
    [data-testid="stLayoutWrapper"]:has(> .st-key-tour .rl-tour) {
    position: fixed; bottom: 0; left: 0; right: 0; z-index: 7; width: 100% }
  :root:has(.rl-controls):has(.st-key-tour .rl-tour) .stMainBlockContainer { padding-bottom: 11rem }
}
.st-key-tour_show_me:has(button[hidden]) { display: none }
.rl-tour { display: flex; flex-wrap: wrap; gap: 0 0.8rem; align-items: center }
.rl-tour ol { display: flex; gap: 0.3rem; list-style: none; margin: 0; padding: 0 }
.rl-tour li { width: 1.4rem; height: 1.4rem; margin: 0; border-radius: 50%; border: 1px solid #8b8f97;
  font-size: 0.8rem; line-height: 1.3rem; text-align: center }
.rl-tour li[aria-current] { border: 2px solid #3a7ca5; line-height: 1.2rem; font-weight: 600 }
[data-testid="stLayoutWrapper"]:has(> .st-key-tour):not(:has(.rl-tour, .stAlert)) { display: none }
</style>"""
LIGHT = """<style>
:is({control}) {{ outline: 3px solid #3a7ca5; outline-offset: 1px; border-radius: 6px }}
</style>"""


def begin() -> None:
    """Take the tour and its step from the address, before the links of the page are drawn."""
    address.restore(TOUR, "", address.one_of(["", *TOURS], _wrong_tour))
    address.restore(TOUR_STEP, 1, _parsed_step)
    tour = TOURS.get(st.session_state[TOUR])
    address.restore(TOUR_DONE, "", _parsed_done)
    if tour is None or not 1 <= st.session_state[TOUR_STEP] <= len(tour.steps):
        st.session_state[TOUR_STEP] = 1
    if tour is None:
        st.session_state[TOUR_DONE] = ""
    _say()
    st.html(STYLE)


def show(place: DeltaGenerator, view: str) -> None:
    """Show the strip, after all controls of the page have said what they show."""
    with place:
        for sentence in [*notices.of(TOUR), *notices.of(TOUR_STEP), *notices.of(TOUR_DONE)]:
            st.warning(plain(sentence))
        tour = TOURS.get(st.session_state[TOUR])
        if tour is None:
            return
        index = st.session_state[TOUR_STEP] - 1
        step, is_here = tour.steps[index], tour.steps[index].view == view
        if is_here and step.is_done(address.said()):
            st.session_state[TOUR_DONE] = "".join(sorted({*st.session_state[TOUR_DONE], str(index + 1)}))
            _say()
        done = {int(number) - 1 for number in st.session_state[TOUR_DONE]}
        if is_here and index not in done:
            address.rerun_when(step.is_done)
        _strip(tour, index, done, view)
    if is_here and index not in done and step.control:
        st.html(LIGHT.format(control=step.control))


def _strip(tour: Tour, index: int, done: set[int], view: str) -> None:
    step = tour.steps[index]
    where = say.WHERE.format(title=tour.title, number=index + 1, all=len(tour.steps))
    marks = "".join(_mark(number, number == index, number in done) for number in range(len(tour.steps)))
    st.html(f"<div class='rl-tour'><strong>{html.escape(where)}</strong><ol>{marks}</ol></div>")
    st.markdown(f"{step.do} **{step.seen}**" if index in done else step.do)
    with st.container(horizontal=True, vertical_alignment="center"):
        if step.view != view:
            _go(say.GO, step, index, view)
        elif step.control:
            show_me(say.SHOW_ME, step.control, key="tour_show_me")
        if index > 0:
            _go(say.BACK, tour.steps[index - 1], index - 1, view)
        if index + 1 < len(tour.steps):
            _go(say.NEXT, tour.steps[index + 1], index + 1, view, is_main=index in done)
        label, kind = (say.FINISH, "primary") if len(done) == len(tour.steps) else (say.LEAVE, "tertiary")
        st.button(label, key="tour_leave", type=kind, on_click=_leave)


def _mark(number: int, is_current: bool, is_done: bool) -> str:
    label = f"{number + 1}, {say.DONE if is_done else say.TO_DO}"
    current = " aria-current='step'" if is_current else ""
    return f"<li{current} aria-label='{label}'>{'✓' if is_done else number + 1}</li>"


def _go(label: str, step: Step, index: int, view: str, *, is_main: bool = False) -> None:
    """Show a button to a step of this page, or a link to one of another page."""
    if step.view == view:
        kind = "primary" if is_main else "secondary"
        st.button(label, key=f"tour_to_{index}", type=kind, on_click=_set, args=(index + 1,))
        return
    query = dict(step.query) | {TOUR: st.session_state[TOUR]}
    query |= {TOUR_STEP: str(index + 1)} if index else {}
    query |= {TOUR_DONE: st.session_state[TOUR_DONE]} if st.session_state[TOUR_DONE] else {}
    with st.container(key=f"tour_link_{index}", width="content"):
        navigation.link_to(step.view, query, label, width="content")


def _set(number: int) -> None:
    st.session_state[TOUR_STEP] = number
    notices.clear(TOUR_STEP)


def _leave() -> None:
    st.session_state[TOUR] = st.session_state[TOUR_DONE] = ""
    _set(1)


def _say() -> None:
    address.say(TOUR, st.session_state[TOUR], "")
    address.say(TOUR_STEP, st.session_state[TOUR_STEP], 1)
    address.say(TOUR_DONE, st.session_state[TOUR_DONE], "")


def _wrong_tour(raw: str) -> str:
    return f"{unknown('tour', raw, list(TOURS))} {say.NO_TOUR}"


def _parsed_step(raw: str) -> int:
    count = _count()
    if not raw.isdecimal() or not 1 <= int(raw) <= count:
        raise UsageError(say.WRONG_STEP.format(raw=raw, all=count))
    return int(raw)


def _parsed_done(raw: str) -> str:
    """Return the digits of the steps that are done, in order, each once."""
    count = _count()
    if not all(digit in "123456789"[:count] for digit in raw):
        raise UsageError(say.WRONG_DONE.format(raw=raw, all=count))
    return "".join(sorted(set(raw)))


def _count() -> int:
    """Return the number of steps of the tour that is on; 1 without a tour."""
    tour = TOURS.get(st.session_state[TOUR])
    return 1 if tour is None else len(tour.steps)
