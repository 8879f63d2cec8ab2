"""Parts of every page: the heading with a link to copy, controls that a link hides, and the projector mode."""

import streamlit as st
from components.copy_link import copy_link
from state import session
from streamlit.delta_generator import DeltaGenerator
from text import links as say
from text.formatting import plain
from text.pages import PAGES

from rlcorr.errors import unknown

SELECTORS = {
    "run_picker": ".st-key-pickers",
    "upload": ".st-key-upload",
    "preset": ".st-key-preset",
    "bounds": ".rl-resets, [data-slider^=live_]:not([data-slider^='live_b.'])",
    "choices": ".st-key-choices",
    "methods": ".st-key-methods",
    "budget": ".st-key-budget",
    "use_it": ".st-key-use_it",
    "second": ".st-key-second, [data-slider^='live_b.']",
    "training": ".st-key-train, .st-key-live_stop, .st-key-part button:last-of-type",
    "explanations": ".st-key-what_is_this",
    "links": ".st-key-links",
}
"""Name in hide= → its CSS selector. Hidden controls keep their values, and the keyboard does not reach them."""

LEFT_COLUMN = frozenset(("preset", "bounds", "choices"))
BELOW = ("budget", "second")
"""If all of LEFT_COLUMN is hidden, the left column is hidden, too, unless it shows one of BELOW."""
LARGE = """
html { font-size: 21px }
.stCaption, [data-testid="stCaptionContainer"], .rl-caption, .st-key-what_is_this { display: none }
.st-key-sizes > * { width: auto !important }
.stMainBlockContainer { max-width: none; padding-left: 2rem; padding-right: 2rem }
"""


def hidden() -> frozenset[str]:
    """Return the names that the link which opened the app hides. They are hidden for the whole visit, in every view."""
    raw = st.query_params.get("hide", st.session_state.get("hide", ""))
    st.session_state["hide"] = raw
    if raw and "hide" not in st.query_params:  # another view has emptied the URL
        st.query_params["hide"] = raw
    return frozenset(name for name in raw.split(",") if name)


def apply(names: frozenset[str], *, without_pickers: bool, another_view: bool) -> None:
    """Hide these controls, enlarge the type if the URL asks for it, and name what is wrong in the URL."""
    for name in sorted(names - set(say.HIDEABLE)):
        st.warning(plain(say.WRONG_HIDE.format(error=unknown("control in hide=", name, say.HIDEABLE))))
    hidden_names = names | ({"run_picker", "upload"} if without_pickers else set())
    selectors = [selector for name, selector in SELECTORS.items() if name in hidden_names]
    if names >= LEFT_COLUMN:
        others = "".join(f":not(:has({SELECTORS[name]}))" for name in BELOW if name not in names)
        selectors.append(f"[data-testid='stColumn']:has({SELECTORS['preset']}){others}")
    rules = f"{', '.join(selectors)} {{ display: none }}" if selectors else ""
    st.html(f"<style>{rules}{LARGE if _projector(another_view) else ''}</style>")


def _projector(another_view: bool) -> bool:
    """Check whether the URL asks for the projector mode. A change of view empties the URL, but keeps the mode."""
    got = st.query_params.get("projector")
    if got is None and another_view and st.session_state.get("projector"):
        got = st.query_params["projector"] = "1"
    if got not in (None, "0", "1"):
        st.warning(plain(say.WRONG_PROJECTOR.format(got=got)))
    st.session_state["projector"] = got == "1"
    return st.session_state["projector"]


def _toggled() -> None:
    if st.session_state["projector"]:
        st.query_params["projector"] = "1"
    else:
        st.query_params.pop("projector", None)


def heading(name: str) -> DeltaGenerator:
    """Show the question that the page answers and its introduction. Return a container for the link, next to it."""
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
        st.toggle(say.PROJECTOR, key="projector", help=say.PROJECTOR_HELP, on_change=_toggled)
