"""Parts of every page: navigation, heading, a link to copy, controls that a link hides, and the projector mode."""

import state
import streamlit as st
from components.links import Link, copy_link, links
from components.sources import style
from data.options import HIDEABLE
from data.recorded import Selection
from text import study_ends as say_study
from text.pages import PAGES

from controls.widgets import switch

EMPTIED = {
    frozenset(("run_picker", "preset")): ".st-key-pickers:not(:has(.st-key-second))",
    frozenset(("run_picker", "preset", "second")): ".st-key-pickers",
    frozenset(("choices", "budget")): "[data-testid='stColumn']:has(> * > * > .st-key-side)",
}
"""Names in hide= → the element that shows nothing else, and is hidden if all of them are."""
UNCOVERED = ".stApp .stMainBlockContainer { padding-top: 1rem }"
"""The style of a page without the navigation, which covers Streamlit's bar."""


def apply(*, without_pickers: bool) -> None:
    """Hide the controls that the address names, and enlarge the type if it asks for it."""
    names = {*state.get("hide")} | ({"run_picker", "upload"} if without_pickers else set())
    selectors = [selector for name, (_, selector) in HIDEABLE.items() if name in names]
    selectors += [selector for emptied, selector in EMPTIED.items() if emptied <= names]
    rules = f"{', '.join(selectors)} {{ display: none }}" if selectors else ""
    uncovered = UNCOVERED if "navigation" in names else ""
    st.html(f"<style>{rules}{uncovered}{style('projector.css') if state.get('projector') else ''}</style>")


def navigation() -> None:
    """Show a link to each view."""
    shown = [Link(page.title, {"view": name}) for name, page in PAGES.items()]
    with st.container(key="navigation"):
        links(*shown, key="views", current=PAGES[state.get("view")].title)


def heading(run_and_step: dict[str, str]) -> None:
    """Show the question that the page answers, its introduction, the button that copies the link, and the projector.

    The link names the run and the step, even if the address leaves them to the newest. A page without a question has
    nothing above its result.
    """
    page = PAGES[state.get("view")]
    if not page.question:
        return
    with st.container(key="heading", horizontal=True, vertical_alignment="center"):
        st.markdown(page.question if page.has_verdict else f"# {page.question}", width="stretch")
        with st.container(key="links", horizontal=True, vertical_alignment="center", width="content"):
            copy_link("Copy link", state.address_of(run_and_step), key="copy_link")
            switch(
                "projector",
                "Projector",
                help="Larger type and pictures; no captions, and nothing at their side. In a link: projector=1.",
            )
    if page.before:
        st.markdown(page.before)


def verdict(sentence: str) -> None:
    """Show the result of a page, in Markdown, as its heading. The page has `has_verdict` in `text.pages.PAGES`."""
    st.markdown(f"# {sentence}")


def run_and_step(shown: Selection | None) -> dict[str, str]:
    """Return the run and the step that are shown, as a link names them."""
    if shown is None:
        return {}
    return {"run": shown.slug} | ({} if shown.step is None else {"step": str(shown.step)})


def with_study_link(sentence: str, name: str) -> str:
    """Return a sentence about a study, in Markdown, in which the study is a link. The browser loads the page anew."""
    address = state.address_of({"view": "training", "part": "Study", "study": name})
    link = say_study.STUDY_LINK.format(name=name, address=address)
    return sentence.replace(say_study.STUDY.format(name=name), link)
