"""What there is to learn: the lessons, the glossary, a cheat sheet with a map of all presets, notes for teaching."""

import streamlit as st
from components.copy_link import copy_link
from controls import lesson_pages
from data.lessons import are_built, lessons, notes_for_teachers, number
from state import navigation, notices, session
from text import learn as say
from text import links
from text.formatting import plain, table
from text.pages import PAGES

from rlcorr import PRESETS
from rlcorr.errors import unknown
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics
from rlcorr.teaching.preset_map import LEVELS, RULES, preset_map

FRAME = "<style>.st-key-lesson_pages iframe { height: max(32rem, calc(100dvh - 9rem)) }</style>"


def show() -> None:
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    if (got := st.query_params.get("learn")) is not None and got not in say.PARTS:
        st.warning(plain(f"{unknown('part', got, say.PARTS)} Showing {say.LESSONS}."))
    part = st.segmented_control(
        "Part", say.PARTS, default=say.LESSONS, key="learn", bind="query-params", required=True,
        label_visibility="collapsed",
    )  # fmt: skip
    {say.LESSONS: _lessons, say.GLOSSARY: _glossary, say.SHEET: _sheet, say.TEACHING: _teaching}[part]()


def _lessons() -> None:
    by_slug = {lesson.slug: lesson for lesson in lessons()}
    slug = st.query_params.get("lesson")
    if slug is not None and slug not in by_slug:
        st.warning(plain(unknown("lesson", slug, list(by_slug))))
        slug = None
    if are_built():
        st.html(FRAME)
        with st.container(key="lesson_pages"):
            st.iframe(lesson_pages.address(slug), height=800, alt=say.FRAME)
        return
    st.markdown(say.LESSONS_ARE)
    for lesson in by_slug.values():
        before = ", ".join(map(number, lesson.prerequisites))
        facts = say.FACTS.format(
            minutes=lesson.minutes,
            level=lesson.level,
            needs=say.NEEDS.format(lessons=before) if before else say.NEEDS_NOTHING,
            hardware=lesson.hardware,
        )
        with st.container(border=True, key=f"lesson_{number(lesson.slug)}"):
            st.markdown(f"##### {number(lesson.slug)} · {plain(lesson.title)}\n{plain(lesson.claim)}")
            st.caption(plain(facts))


def _glossary() -> None:
    text = st.text_input(say.SEARCH, key="search")
    terms, metrics = find(text), find_metrics(text)
    if not terms and not metrics:
        st.info(plain(say.NOT_FOUND.format(text=text)))
    if terms:
        rows = [[word, GLOSSARY[word].symbol, define(word), GLOSSARY[word].also] for word in terms]
        st.html(table(say.WORDS, rows))
    if metrics:
        with st.expander(say.METRICS, expanded=bool(text)):
            st.html(table(say.METRIC_HEADER, [list(row) for row in metrics.items()]))


def _sheet() -> None:
    left, right = st.columns(2, gap="medium")
    left.markdown(say.SYMBOLS)
    right.markdown(say.ESTIMATORS)
    right.markdown(say.CORRECTIONS)
    st.markdown(f"**{say.MAP}**")
    places = preset_map()
    used = [rule for rule in RULES if any((level, rule) in places for level in LEVELS)]
    rows = [[level, *("\n".join(places.get((level, rule), [])) for rule in used)] for level in LEVELS]
    with st.container(key="preset_map"):
        st.html(table([say.MAP_CORNER, *used], rows))
    _preset()
    with st.expander(say.ALL):
        every = [[name, p.system, p.config.explain(), p.hurts, p.source] for name, p in PRESETS.items()]
        st.html(table(say.ALL_HEADER, every))


def _preset() -> None:
    name = st.selectbox(say.PICK, list(PRESETS), key="looked_up")
    entry = PRESETS[name]
    st.markdown(f"{plain(entry.config.explain())}\n\n**When it hurts:** {plain(entry.hurts)}.")
    st.caption(f"Source: {plain(entry.source)}.")
    navigation.link_to("bench", {"preset": name}, say.OPEN_PRESET)


def _teaching() -> None:
    st.markdown(say.BUILD)
    st.caption(say.BUILD_IS)
    st.session_state.setdefault("link_view", "bench")
    left, middle, right = st.columns([1, 2, 1], vertical_alignment="bottom")
    view = left.selectbox(say.VIEW, list(PAGES), format_func=lambda name: PAGES[name].title, key="link_view")
    names = middle.multiselect(say.HIDE, list(links.HIDEABLE), key="link_hide")
    large = right.toggle(say.LARGE, key="link_projector")
    query = session.placed() | navigation.configured()
    query |= {"hide": ",".join(names)} if names else {}
    query |= {"projector": "1"} if large else {}
    copy_link(say.MAKE, query, words=links.LINK, key="copy_built", path=navigation.pages()[view].url_path)
    st.html(table(say.HIDE_HEADER, [list(row) for row in links.HIDEABLE.items()]))
    st.markdown(notes_for_teachers())


show()
