"""The Learn page: lessons, glossary, a cheat sheet with a map of all presets, and notes for teachers."""

import base64
import html
import re
from typing import Any

import state
import streamlit as st
from components.links import Link, copy_link, links
from controls import lesson_pages
from controls.sharing import run_and_step
from controls.widgets import buttons, pick, pick_several, switch
from data import options
from data.lessons import LESSONS, are_built, cells, five_lessons, inside, lessons, number, text_of
from data.names import preset_title
from data.recorded import Selection
from text import pages
from text.formatting import Cell, plain, table

from rlcorr import PRESETS
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics
from rlcorr.teaching.preset_map import LEVELS, RULES, preset_map

LESSONS_ARE = (
    "The lessons derive every formula, check it, and show it on the recorded runs. `make learn` opens them as "
    "notebooks, in which you can solve the exercises. They need no network and no GPU, except where stated."
)
PATH_IS = (
    "They lead to a decision about your own run, and need none of the others. They end with the decision card, one "
    "page to print and to fill in."
)
SYMBOLS = r"""
| | symbol | in the code | |
|---|---|---|---|
| the sampler's probability | $q = \pi_{rollout}$ | `rollout_log_probs` is $\log q$ | sampled the token |
| the trainer's | $p = \pi_{old}$ | `old_log_probs` is $\log p$ | before the update |
| log-ratio | $d = \log p - \log q$ | `log_ratio(p, q, mask)` | 0 where they agree |
| ratio | $r = p/q = e^d$ | `ratio(d)` | $E_q[r] = 1$ |
| ratio of an answer | $\prod_t r_t = e^{\sum_t d_t}$ | `over_sequence(d, mask, "sum")` | spread grows with $\sqrt T$ |
| geometric mean | $e^{\frac1T \sum_t d_t}$ | `over_sequence(d, mask, "mean")` | stays near 1 |
"""
ESTIMATORS = r"""
| estimator of $KL(q\|p)$ | value | over tokens from $q$ | as a loss that keeps $\pi_\theta$ near $\pi$ |
|---|---|---|---|
| k1 | $-d$ | unbiased, high variance, either sign | its expected gradient is 0 |
| k2 | $d^2/2$ | biased, low variance | follows $\nabla KL(\pi_\theta\|\pi)$ |
| k3 | $e^d - 1 - d$ | unbiased, never negative | follows $\nabla KL(\pi\|\pi_\theta)$ |
"""
CORRECTIONS = r"""
| | | costs |
|---|---|---|
| truncate (TIS) | $w = \min(r, C)$ | bias: all ratios above $C$ count the same |
| mask (IcePop) | $w = r$ inside the thresholds, else 0 | bias: tokens outside never teach |
| reject | left out if a divergence is outside its thresholds | bias, and a step that is smaller by the kept share |
| effective sample size | $(\sum w)^2 / (n \sum w^2)$ | 1: all weights are equal; $1/n$: one token decides |
| a threshold $C$ of a product | $C^{1/T}$ per token | for $T = 1000$, $C = 2$: 1.0007 |
"""
OPEN = "Open the lesson"
FOLDED = {"solution": "A solution", "hide-input": "The code"}
"""Tag of a cell → the box that its code is folded into."""
PARTS = re.compile(r"((?:(?!^!\[).*\n?)+)|!\[(.*)\]\((.*)\)\n?", re.MULTILINE)
"""Lines of text, or a picture on a line of its own: its words and its path."""
TEXTS = {options.CARD: "DECISION_CARD.md", options.PAPERS: "PAPERS.md"}


def show(shown: Selection | None) -> None:
    part = buttons("learn", "Part", options.LEARN, hide_label=True)
    if part == options.TEACHING:
        _teaching(run_and_step(shown))
    elif part in TEXTS:
        st.markdown(text_of(TEXTS[part]))
    else:
        {options.LESSONS: _lessons, options.GLOSSARY: _glossary, options.SHEET: _sheet}[part]()


def _lessons() -> None:
    if are_built():
        with st.container(key="lesson_pages"):
            address = lesson_pages.address(state.get("lesson") or None)
            st.iframe(address, height=800, alt="The lessons as pages, with their own list and search")
        return
    if shown := cells(state.get("lesson")):
        links(Link("All lessons", {"lesson": ""}), key="all_lessons")
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


def _sheet() -> None:
    left, right = st.columns(2, gap="medium")
    left.markdown(SYMBOLS)
    right.markdown(ESTIMATORS)
    right.markdown(CORRECTIONS)
    st.markdown("**Presets by the level of their weights (rows) and the divergence of their rules (columns)**")
    names = preset_map()
    used = [rule for rule in RULES if any((level, rule) in names for level in LEVELS)]
    levels = [level for level in LEVELS if any((level, rule) in names for rule in RULES)]
    rows = [[level, *(_titled(names.get((level, rule), [])) for rule in used)] for level in levels]
    with st.container(key="preset_map"):
        st.html(table(["weights \\ rules", *used], rows))
    with st.expander("All presets: what they do, when they hurt, and their source"):
        every = [[_titled([name]), p.system, p.config.explain(), p.fails_when, p.source] for name, p in PRESETS.items()]
        st.html(table(["Preset", "System", "What it does", "When it hurts", "Source"], every))


def _titled(names: list[str]) -> Cell:
    """Return the cell of these presets: each title once, and below it the presets that have it."""
    by_title: dict[str, list[str]] = {}
    for name in names:
        by_title.setdefault(preset_title(name), []).append(name)
    return [(title, "\n".join(same)) for title, same in by_title.items()]


def _teaching(shown: dict[str, str]) -> None:
    st.markdown("## Make a link")
    st.caption("The link has the run, step, preset and thresholds that you have set in the other views.")
    left, middle, right = st.columns([1, 2, 1], vertical_alignment="bottom")
    with left:
        view = pick("link_view", "View", list(pages.PAGES), written=lambda name: pages.PAGES[name].title)
    with middle:
        hideable = {name: what for name, (what, _) in options.HIDEABLE.items()}
        names = pick_several("link_hide", "Hide", list(hideable), written=hideable.__getitem__)
    with right:
        large = switch("link_projector", "For the projector")
    changes = {"view": view, "tour": "", "hide": ",".join(names), "projector": "1" if large else "", **shown}
    copy_link("Copy this link", state.address_of(changes), key="copy_built", is_shown=True)
    st.html(table(["In hide=", "What it hides"], [list(row) for row in hideable.items()]))
    st.markdown(text_of("TEACHING.md"))
