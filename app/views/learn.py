"""The Learn page: lessons, the decision card, words, presets, papers, and notes for teachers."""

import base64
import html
import re
from typing import Any

import state
import streamlit as st
from components.links import Link, links
from controls.widgets import buttons
from data import options
from data.lessons import LESSONS, cells, five_lessons, inside, lessons, number, text_of
from data.names import preset_title
from text.formatting import plain, table

from rlcorr import PRESETS
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics

LESSONS_ARE = (
    "The lessons derive every formula, check it, and show it on the recorded runs. `make learn` opens them as "
    "notebooks, in which you can solve the exercises. They need no network and no GPU, except where stated."
)
PATH_IS = (
    "They lead to a decision about your own run, and need none of the others. They end with the decision card, one "
    "page to print and to fill in."
)
OPEN = "Open the lesson"
FOLDED = {"solution": "A solution", "hide-input": "The code"}
"""Tag of a cell → the box that its code is folded into."""
PARTS = re.compile(r"((?:(?!^!\[).*\n?)+)|!\[(.*)\]\((.*)\)\n?", re.MULTILINE)
"""Lines of text, or a picture on a line of its own: its words and its path."""
HIDING = """
## What a link can hide
“Copy link” gives the address of a page. Add `hide=` with names of this table, and `projector=1` for large type:
`/?view=bench&run=bf16&preset=decoupled_token_is&hide=preset,choices&projector=1`
"""
TEXTS = {options.CARD: "DECISION_CARD.md", options.PAPERS: "PAPERS.md"}


def show() -> None:
    part = buttons("learn", "Part", options.LEARN, hide_label=True)
    if part in TEXTS:
        st.markdown(text_of(TEXTS[part]))
    else:
        {options.LESSONS: _lessons, options.GLOSSARY: _glossary, options.TEACHING: _teaching}[part]()


def _lessons() -> None:
    if shown := cells(state.get("lesson")):
        links(Link("All lessons", {"lesson": ""}), key="all_lessons")
        with st.container(key="lesson"):
            for cell in shown:
                _cell(cell)
        return
    st.markdown(f"{LESSONS_ARE}\n\n## Five lessons, four hours\n{PATH_IS}")
    rows = [[f"{number(one.slug)} · {one.title}", one.decides, str(one.minutes)] for one in five_lessons()]
    st.html(table(["Lesson", "What you can decide after it", "Minutes"], rows))
    st.markdown("## All lessons")
    for lesson in lessons():
        before = ", ".join(map(number, lesson.prerequisites))
        needs = f"after {before}" if before else "no other lesson before it"
        facts = f"{lesson.minutes} minutes · {lesson.level} · {needs} · {lesson.hardware}"
        with st.container(border=True, key=f"lesson_{number(lesson.slug)}"):
            st.markdown(f"## {number(lesson.slug)} · {plain(lesson.title)}\n{plain(lesson.claim)}")
            st.caption(plain(facts))
            if cells(lesson.slug):
                links(Link(OPEN, {"lesson": lesson.slug}), key=f"open_{lesson.slug}")


def _cell(cell: dict[str, Any]) -> None:
    """Show a cell of a notebook: its text, or its code with what it printed and drew. Pictures are still ones."""
    source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
    if cell["cell_type"] == "markdown":
        for text, alt, path in PARTS.findall(inside(source)):
            if path:
                _image((LESSONS / path).read_bytes(), "svg+xml", alt)
            elif text.strip():
                st.markdown(re.sub("^# ", "## ", text), unsafe_allow_html=True)  # hints fold; the page has its h1
        return
    folded = next((word for tag, word in FOLDED.items() if tag in tags), None)
    (st.expander(folded) if folded else st).code(source.strip(), language="python")
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            _image(base64.b64decode(data["image/png"]), "png", output["metadata"]["image/png"]["alt"])
        elif "text/markdown" in data:
            st.markdown(inside("".join(data["text/markdown"])), unsafe_allow_html=True)  # so do answers to predictions
        else:
            st.code("".join(output["text"]), language=None)


def _image(content: bytes, kind: str, alt: str) -> None:
    address = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    st.html(f'<img src="{address}" alt="{html.escape(alt)}" style="max-width: 100%">')


def _glossary() -> None:
    text: str = state.get("search")
    st.text_input("Search the glossary", value=text, key=state.widget("search"))
    terms, metrics = find(text), find_metrics(text)
    if not terms and not metrics:
        st.info(plain(f"No word and no metric contains {text}."))
    if terms:
        rows = [[word, GLOSSARY[word].symbol, define(word), GLOSSARY[word].also] for word in terms]
        words = table(["Word", "Symbol", "Meaning", "Also called"], rows)
        st.html(f"<div class='rl-words'>{words}</div>")
    if metrics:
        with st.expander("Metrics, with the names that the trainer logs", expanded=bool(text)):
            st.html(table(["Metric", "Meaning"], [list(row) for row in metrics.items()]))
    with st.expander("Letters of the lessons"):
        st.markdown(text_of("NOTATION.md"))
    with st.expander("All presets: what they do, when they hurt, and their source"):
        rows = [
            [[(preset_title(name), name)], entry.system, entry.config.explain(), entry.fails_when, entry.source]
            for name, entry in PRESETS.items()
        ]
        with st.container(key="presets"):
            st.html(table(["Preset", "System", "What it does", "When it hurts", "Source"], rows))


def _teaching() -> None:
    st.markdown(HIDING)
    rows = [[name, what] for name, (what, _) in options.HIDEABLE.items()]
    st.html(f"<div class='rl-words'>{table(['In hide=', 'What it hides'], rows)}</div>")
    st.markdown(text_of("TEACHING.md"))
