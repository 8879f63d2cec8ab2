"""Parts of every page: navigation, heading, a link to copy, controls that a link hides, and the projector mode."""

from collections.abc import Collection

import state
import streamlit as st
from components.links import Link, copy_link, links
from data.recorded import Selection
from text import pages as say
from text import study_ends as say_study
from text import training as training_text
from text.pages import PAGES

from controls.choosing import switch

SELECTORS = {
    "run_picker": ".st-key-pickers:not(:has(.st-key-preset)), .st-key-run, .st-key-step, .st-key-run_state",
    "upload": ".st-key-upload",
    "preset": ".st-key-preset",
    "bounds": ".rl-resets, [data-slider^=live_]:not([data-slider^='live_b.'])",
    "navigation": ".st-key-navigation",
    "choices": ".st-key-choices",
    "methods": ".st-key-methods",
    "budget": ".st-key-budget",
    "paste": ".st-key-paste",
    "use_it": ".st-key-use_it",
    "second": ".st-key-second, .st-key-second_choices, [data-slider^='live_b.']",
    "training": ".st-key-train, .st-key-live_stop, .st-key-part button:last-of-type",
    "explanations": ".st-key-what_is_this",
    "links": ".st-key-links",
}
"""Name in hide= → its CSS selector. Hidden controls keep their values, and the keyboard does not reach them."""

EMPTIED = {
    frozenset(("run_picker", "preset")): ".st-key-pickers:not(:has(.st-key-second))",
    frozenset(("run_picker", "preset", "second")): ".st-key-pickers",
    frozenset(("choices", "budget")): "[data-testid='stColumn']:has(> * > * > .st-key-side)",
}
"""Names in hide= → the element that shows nothing else, and is hidden if all of them are."""
UNCOVERED = ".stApp .stMainBlockContainer { padding-top: 1rem }"
"""The style of a page without the navigation, which covers Streamlit's bar."""
LARGE = """
html { font-size: 21px }
.stCaption, [data-testid="stCaptionContainer"], .rl-caption, .st-key-what_is_this { display: none }
.st-key-sizes, .rl-numbers, .rl-said, .st-key-run_state, .st-key-copy_link { display: none }
@media (min-width: 641px) {
  .stApp .stMainBlockContainer { padding-top: 2.75rem; --rl-top: 2.25rem }
  .stMarkdown h1, .rl-lab-title { font-size: 1.5rem }
  .stMainBlockContainer > [data-testid="stVerticalBlock"] { gap: 0.2rem }
  [data-testid="stColumn"]:has(> * > * > .st-key-side) { display: none }
  .st-key-heading .stMarkdown { position: absolute; clip-path: inset(50%) }
  .st-key-heading { position: fixed; top: 0; right: 3.5rem; z-index: 999992; width: auto }
  .st-key-navigation { right: 13rem; height: 2.25rem; justify-content: start }
}
"""


def apply(*, without_pickers: bool) -> None:
    """Hide the controls that the address names, and enlarge the type if it asks for it."""
    names = {*state.get("hide")} | ({"run_picker", "upload"} if without_pickers else set())
    selectors = [selector for name, selector in SELECTORS.items() if name in names]
    selectors += [selector for emptied, selector in EMPTIED.items() if emptied <= names]
    rules = f"{', '.join(selectors)} {{ display: none }}" if selectors else ""
    uncovered = UNCOVERED if "navigation" in names else ""
    st.html(f"<style>{rules}{uncovered}{LARGE if state.get('projector') else ''}</style>")


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
            copy_link(say.COPY, state.address_of(run_and_step), words=say.LINK, key="copy_link")
            switch("projector", say.PROJECTOR, help=say.PROJECTOR_HELP)
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


def view_links(names: Collection[str], *, key: str) -> None:
    """Show a link to each of these views, which show the same run."""
    links(*(Link(PAGES[name].title, {"view": name}) for name in names), key=key)


def with_study_link(sentence: str, name: str) -> str:
    """Return a sentence about a study, in Markdown, in which the study is a link. The browser loads the page anew."""
    address = state.address_of({"view": "training", "part": training_text.PARTS[1], "study": name})
    link = say_study.STUDY_LINK.format(name=name, address=address)
    return sentence.replace(say_study.STUDY.format(name=name), link)
