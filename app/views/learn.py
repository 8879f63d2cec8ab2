"""The Learn page: lessons, glossary, a cheat sheet with a map of all presets, and notes for teachers."""

import streamlit as st
from components.copy_link import copy_link
from controls import lesson_pages
from controls.segments import choose_one
from data.lessons import are_built, lessons, notes_for_teachers, number
from data.names import BETWEEN, preset_label, preset_title
from state import address, navigation, notices, session
from text import learn as learn_text
from text import links as links_text
from text.formatting import plain, table
from text.pages import PAGES

from rlcorr import PRESETS
from rlcorr.errors import unknown
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics
from rlcorr.teaching.preset_map import LEVELS, RULES, preset_map

FRAME = "<style>.st-key-lesson_pages iframe { height: max(32rem, calc(100dvh - 9rem)) }</style>"
MAP_STYLE = """<style>
.st-key-preset_map td { min-width: 5rem; overflow-wrap: normal }
.st-key-preset_map td + td { min-width: 8rem }
.st-key-preset_map abbr { margin-bottom: 0.4rem; text-decoration-color: #8b8f9799 }
</style>"""


def show() -> None:
    for sentence in notices.sentences():
        st.warning(plain(sentence))
    part = choose_one("Part", learn_text.PARTS, learn_text.LESSONS, "learn", noun="part", hide_label=True)
    {
        learn_text.LESSONS: _lessons,
        learn_text.GLOSSARY: _glossary,
        learn_text.SHEET: _sheet,
        learn_text.TEACHING: _teaching,
    }[part]()


def _lessons() -> None:
    by_slug = {lesson.slug: lesson for lesson in lessons()}
    address.restore("lesson", "", address.one_of(by_slug, lambda raw: str(unknown("lesson", raw, list(by_slug)))))
    slug = st.session_state["lesson"] or None
    for sentence in notices.of("lesson"):
        st.warning(plain(sentence))
    address.say("lesson", slug or "", "")
    if are_built():
        st.html(FRAME)
        with st.container(key="lesson_pages"):
            st.iframe(lesson_pages.address(slug), height=800, alt=learn_text.FRAME)
        return
    st.markdown(learn_text.LESSONS_ARE)
    for lesson in by_slug.values():
        before = ", ".join(map(number, lesson.prerequisites))
        facts = learn_text.FACTS.format(
            minutes=lesson.minutes,
            level=lesson.level,
            needs=learn_text.NEEDS.format(lessons=before) if before else learn_text.NEEDS_NOTHING,
            hardware=lesson.hardware,
        )
        with st.container(border=True, key=f"lesson_{number(lesson.slug)}"):
            st.markdown(f"##### {number(lesson.slug)} · {plain(lesson.title)}\n{plain(lesson.claim)}")
            st.caption(plain(facts))


def _glossary() -> None:
    text = st.text_input(learn_text.SEARCH, key="search")
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
    cells = {cell: _by_title(presets) for cell, presets in names.items()}
    rows = [[level, *("\n".join(cells.get((level, rule), [])) for rule in used)] for level in levels]
    presets_of = {line: presets for cell in cells.values() for line, presets in cell.items()}
    with st.container(key="preset_map"):
        st.html(MAP_STYLE + table([learn_text.MAP_CORNER, *used], rows, presets_of))
    _preset()
    with st.expander(learn_text.ALL):
        every = [[name, p.system, p.config.explain(), p.fails_when, p.source] for name, p in PRESETS.items()]
        st.html(table(learn_text.ALL_HEADER, every))


def _by_title(presets: list[str]) -> dict[str, str]:
    """Return title and systems of these presets → their names."""
    by_title: dict[str, list[str]] = {}
    for name in presets:
        by_title.setdefault(preset_title(name), []).append(name)
    return {
        BETWEEN.join((title, ", ".join(dict.fromkeys(PRESETS[name].system for name in same)))): ", ".join(same)
        for title, same in by_title.items()
    }


def _preset() -> None:
    name = st.selectbox(learn_text.PICK, list(PRESETS), format_func=preset_label, key="looked_up")
    entry = PRESETS[name]
    st.markdown(f"{plain(entry.config.explain())}\n\n**When it hurts:** {plain(entry.fails_when)}.")
    st.caption(f"Source: {plain(entry.source)}.")
    navigation.link_to("bench", {"preset": name}, learn_text.OPEN_PRESET)


def _teaching() -> None:
    st.markdown(learn_text.BUILD)
    st.caption(learn_text.BUILD_IS)
    st.session_state.setdefault("link_view", "bench")
    left, middle, right = st.columns([1, 2, 1], vertical_alignment="bottom")
    view = left.selectbox(learn_text.VIEW, list(PAGES), format_func=lambda name: PAGES[name].title, key="link_view")
    hideable = links_text.HIDEABLE
    names = middle.multiselect(learn_text.HIDE, list(hideable), format_func=hideable.__getitem__, key="link_hide")
    large = right.toggle(learn_text.LARGE, key="link_projector")
    query = session.run_and_step() | navigation.preset_and_fields()
    query |= {"hide": ",".join(names)} if names else {}
    query |= {"projector": "1"} if large else {}
    copy_link(learn_text.MAKE, query, words=links_text.LINK, key="copy_built", path=navigation.pages()[view].url_path)
    st.html(table(learn_text.HIDE_HEADER, [list(row) for row in links_text.HIDEABLE.items()]))
    st.markdown(notes_for_teachers())


show()
