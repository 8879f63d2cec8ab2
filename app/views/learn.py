"""The Learn page: lessons, glossary, a cheat sheet with a map of all presets, and notes for teachers."""

import state
import streamlit as st
from components.links import Link, copy_link, links
from controls import lesson_pages
from controls.choosing import buttons, pick, pick_several, switch
from controls.sharing import run_and_step
from data.lessons import are_built, five_lessons, lessons, number, text_of
from data.names import preset_label, preset_title
from data.recorded import Selection
from text import learn as learn_text
from text import pages
from text.formatting import Cell, plain, table

from rlcorr import PRESETS
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics
from rlcorr.teaching.preset_map import LEVELS, RULES, preset_map

TEXTS = {learn_text.CARD: "DECISION_CARD.md", learn_text.PAPERS: "PAPERS.md"}


def show(shown: Selection | None) -> None:
    part = buttons("learn", "Part", learn_text.PARTS, hide_label=True)
    if part == learn_text.TEACHING:
        _teaching(run_and_step(shown))
    elif part in TEXTS:
        st.markdown(text_of(TEXTS[part]))
    else:
        {learn_text.LESSONS: _lessons, learn_text.GLOSSARY: _glossary, learn_text.SHEET: _sheet}[part]()


def _lessons() -> None:
    if are_built():
        with st.container(key="lesson_pages"):
            st.iframe(lesson_pages.address(state.get("lesson") or None), height=800, alt=learn_text.FRAME)
        return
    st.markdown(f"{learn_text.LESSONS_ARE}\n\n{learn_text.PATH}\n{learn_text.PATH_IS}")
    rows = [[f"{number(one.slug)} · {one.title}", one.decides, str(one.minutes)] for one in five_lessons()]
    st.html(table(learn_text.PATH_HEADER, rows))
    st.markdown(learn_text.ALL_LESSONS)
    for lesson in lessons():
        before = ", ".join(map(number, lesson.prerequisites))
        needs = learn_text.NEEDS.format(lessons=before) if before else learn_text.NEEDS_NOTHING
        facts = learn_text.FACTS.format(
            minutes=lesson.minutes, level=lesson.level, needs=needs, hardware=lesson.hardware
        )
        with st.container(border=True, key=f"lesson_{number(lesson.slug)}"):
            st.markdown(f"## {number(lesson.slug)} · {plain(lesson.title)}\n{plain(lesson.claim)}")
            st.caption(plain(facts))


def _glossary() -> None:
    text: str = state.get("search")
    st.text_input(learn_text.SEARCH, value=text, key=state.widget("search"))
    terms, metrics = find(text), find_metrics(text)
    if not terms and not metrics:
        st.info(plain(learn_text.NOT_FOUND.format(text=text)))
    if terms:
        rows = [[word, GLOSSARY[word].symbol, define(word), GLOSSARY[word].also] for word in terms]
        st.html(table(learn_text.WORDS, rows))
    if metrics:
        with st.expander(learn_text.METRICS, expanded=bool(text)):
            st.html(table(learn_text.METRIC_HEADER, [list(row) for row in metrics.items()]))


def _sheet() -> None:
    left, right = st.columns(2, gap="medium")
    left.markdown(learn_text.SYMBOLS)
    right.markdown(learn_text.ESTIMATORS)
    right.markdown(learn_text.CORRECTIONS)
    st.markdown(f"**{learn_text.MAP}**")
    names = preset_map()
    used = [rule for rule in RULES if any((level, rule) in names for level in LEVELS)]
    levels = [level for level in LEVELS if any((level, rule) in names for rule in RULES)]
    rows = [[level, *(_titled(names.get((level, rule), [])) for rule in used)] for level in levels]
    with st.container(key="preset_map"):
        st.html(table([learn_text.MAP_CORNER, *used], rows))
    name = pick("looked_up", learn_text.PICK, list(PRESETS), written=preset_label)
    entry = PRESETS[name]
    st.markdown(f"{plain(entry.config.explain())}\n\n**When it hurts:** {plain(entry.fails_when)}.")
    st.caption(f"Source: {plain(entry.source)}.")
    links(Link(learn_text.OPEN_PRESET, {"view": "bench", "preset": name}), key="open_preset")
    with st.expander(learn_text.ALL):
        every = [[_titled([name]), p.system, p.config.explain(), p.fails_when, p.source] for name, p in PRESETS.items()]
        st.html(table(learn_text.ALL_HEADER, every))


def _titled(names: list[str]) -> Cell:
    """Return the cell of these presets: each title once, and below it the presets that have it."""
    by_title: dict[str, list[str]] = {}
    for name in names:
        by_title.setdefault(preset_title(name), []).append(name)
    return [(title, "\n".join(same)) for title, same in by_title.items()]


def _teaching(shown: dict[str, str]) -> None:
    st.markdown(learn_text.BUILD)
    st.caption(learn_text.BUILD_IS)
    left, middle, right = st.columns([1, 2, 1], vertical_alignment="bottom")
    with left:
        view = pick("link_view", learn_text.VIEW, list(pages.PAGES), written=lambda name: pages.PAGES[name].title)
    with middle:
        hideable = pages.HIDEABLE
        names = pick_several("link_hide", learn_text.HIDE, list(hideable), written=hideable.__getitem__)
    with right:
        large = switch("link_projector", learn_text.LARGE)
    changes = {"view": view, "tour": "", "hide": ",".join(names), "projector": "1" if large else "", **shown}
    copy_link(learn_text.MAKE, state.address_of(changes), words=pages.LINK, key="copy_built", is_shown=True)
    st.html(table(learn_text.HIDE_HEADER, [list(row) for row in pages.HIDEABLE.items()]))
    st.markdown(text_of("TEACHING.md"))
