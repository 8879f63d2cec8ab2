"""What the pickers say, which all pages share. `run`, `step` and `preset` are widgets bound to the URL."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

PICKERS = ("run", "step", "part")
"""Keys of the widgets that decide what the whole page shows."""
NEWEST, LATEST, DEFAULT_PRESET = "newest", "latest", "decoupled_token_is"
ANOTHER = "another"


@dataclass(frozen=True)
class Selection:
    """What the pickers say: a run, and its step if it has a readable one."""

    slug: str
    run: Path
    steps: tuple[int, ...]
    step: int | None


def select(selection: Selection) -> None:
    st.session_state["selection"] = selection


def selection() -> Selection:
    return st.session_state["selection"]


def placed() -> dict[str, str]:
    """The run and the step that are shown, as a link says them, also where the URL leaves them to the newest."""
    shown = st.session_state.get("selection")
    if shown is None:
        return {}
    return {"run": shown.slug} | ({} if shown.step is None else {"step": str(shown.step)})


def remember_pickers() -> None:
    """Remember what the pickers say, at the end of a run of the page that has shown it."""
    st.session_state["drawn_pickers"] = _pickers()


def differs_from_page() -> bool:
    """Return whether the browser's pickers say something else than what the page shows, once for each difference.

    Streamlit lets a new run begin before an older one has ended. If a timer's request and a click come at the same
    moment on a busy machine, the older values can replace those of the click: the browser shows the choice, and the
    page does not. The next request of a timer brings the choice again.
    """
    before = st.session_state.get("drawn_pickers")
    remember_pickers()
    return before is not None and before != _pickers()


def _pickers() -> list[str | None]:
    return [st.session_state.get(key) for key in PICKERS]


def set_source(source: str) -> None:
    st.session_state["source"] = source


def source() -> str:
    """Where the pictures of the chosen step come from, in one line."""
    return st.session_state.get("source", "")


def restore(key: str) -> None:
    """Give a picker what it showed on the page before, unless the URL names a value.

    Each page has an element of its own for the same key. Right after a change of page, Streamlit may still know the
    value under the other page's element only: it calls the key known, and shows the default all the same.
    """
    view, last = st.session_state.get("view"), f"last_{key}"
    shown_here = key in st.session_state and st.session_state.get(f"{key}_view") == view
    if not shown_here and key not in st.query_params and last in st.session_state:
        st.session_state[key] = st.session_state[last]
    st.session_state[f"{key}_view"] = view


def new_run() -> int:
    """A number that is given once. A component that gets it draws again, although a run of the page may show what it
    showed before something was dragged."""
    run = st.session_state["runs_shown"] = st.session_state.get("runs_shown", 0) + 1
    return run
