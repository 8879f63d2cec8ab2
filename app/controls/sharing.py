"""Parts of every page: the heading with a link to copy, controls that a link hides, and the projector mode."""

from urllib.parse import urlencode

import streamlit as st
from components.copy_link import copy_link
from state import address, navigation, notices, session
from streamlit.delta_generator import DeltaGenerator
from text import links as say
from text import study_ends as say_study
from text import training as training_text
from text.formatting import plain
from text.pages import PAGES

from rlcorr.errors import UsageError, unknown

SELECTORS = {
    "run_picker": ".st-key-pickers:not(:has(.st-key-preset)), .st-key-run, .st-key-step, .st-key-run_state",
    "upload": ".st-key-upload",
    "preset": ".st-key-preset",
    "bounds": ".rl-resets, [data-slider^=live_]:not([data-slider^='live_b.'])",
    "choices": ".st-key-choices",
    "methods": ".st-key-methods",
    "budget": ".st-key-budget",
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
# Streamlit's bar, where the navigation is, needs no room below it. Without the navigation it covers the page's top.
LOW = """
.stApp .stMainBlockContainer { padding-top: 1.75rem }
.stMainBlockContainer > [data-testid="stVerticalBlock"] { gap: 0.5rem }
[data-testid="stHeading"] h4 { padding: 0.25rem 0 }
"""
LARGE = """
html { font-size: 21px }
.stCaption, [data-testid="stCaptionContainer"], .rl-caption, .st-key-what_is_this { display: none }
.st-key-sizes > * { width: auto !important }
.stMainBlockContainer { max-width: none; padding-left: 2rem; padding-right: 2rem }
"""


def hides_navigation() -> bool:
    """Check whether the navigation is hidden, before it is known which view is shown."""
    raw = st.query_params.get("hide", st.session_state.get("hide", ""))
    return "navigation" in raw.split(",")


def hidden() -> frozenset[str]:
    """Return the names that the link which opened the app hides. They are hidden for the whole visit, in every view."""
    address.restore("hide", "", str)
    raw = st.session_state["hide"]
    address.say("hide", raw, "")
    return frozenset(name for name in raw.split(",") if name)


def apply(names: frozenset[str], *, without_pickers: bool) -> None:
    """Hide these controls, enlarge the type if the URL asks for it, and name what is wrong in the URL."""
    for name in sorted(names - set(say.HIDEABLE)):
        st.warning(plain(say.WRONG_HIDE.format(error=unknown("control in hide=", name, say.HIDEABLE))))
    hidden_names = names | ({"run_picker", "upload"} if without_pickers else set())
    selectors = [selector for name, selector in SELECTORS.items() if name in hidden_names]
    selectors += [selector for emptied, selector in EMPTIED.items() if emptied <= names]
    rules = f"{', '.join(selectors)} {{ display: none }}" if selectors else ""
    st.html(f"<style>{rules}{'' if hides_navigation() else LOW}{LARGE if _projector() else ''}</style>")


def _projector() -> bool:
    """Return whether the large type is on, and name what is wrong with it in the address."""
    address.restore("projector", False, _on_or_off)
    for sentence in notices.of("projector"):
        st.warning(plain(sentence))
    is_on = st.session_state["projector"]
    address.say("projector", is_on, False, lambda _: "1")
    return is_on


def _on_or_off(raw: str) -> bool:
    if raw not in ("0", "1"):
        raise UsageError(say.WRONG_PROJECTOR.format(got=raw))
    return raw == "1"


def heading(name: str) -> DeltaGenerator:
    """Show the question that the page answers and its introduction. Return a container for the link, next to it."""
    with st.container():
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"#### {PAGES[name].question}", width="stretch")
            container = st.container(key="links", horizontal=True, vertical_alignment="center", width="content")
        if PAGES[name].before:
            st.markdown(PAGES[name].before)
    return container


def links(container: DeltaGenerator) -> None:
    """Show the button that copies the link, and the projector switch.

    The link names the run and the step, even if the URL leaves them to the newest.
    """
    with container:
        copy_link(say.COPY, session.run_and_step(), words=say.LINK, key="copy_link")
        st.toggle(say.PROJECTOR, key="projector", help=say.PROJECTOR_HELP)


def with_study_link(sentence: str, name: str) -> str:
    """Return a sentence about a study, in Markdown, in which the study is a link. Streamlit loads the page anew."""
    query = navigation.linked({"part": training_text.PARTS[1], "study": name})
    link = say_study.STUDY_LINK.format(name=name, address=f"training?{urlencode(query)}")
    return sentence.replace(say_study.STUDY.format(name=name), link)
