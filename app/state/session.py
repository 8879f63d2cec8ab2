"""The values of the pickers, which all pages share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

PICKERS = ("run", "step", "preset", "run_b", "step_b", "preset_b", "part")
"""Keys of the widgets that decide what the whole page shows."""
NEWEST, LATEST, DEFAULT_PRESET = "newest", "latest", "decoupled_token_is"
ANOTHER = "another"


@dataclass(frozen=True)
class Selection:
    """The run that is picked, and its step if it has a readable one."""

    slug: str
    run: Path
    steps: tuple[int, ...]
    step: int | None


def select(selection: Selection) -> None:
    st.session_state["selection"] = selection


def selection() -> Selection:
    return st.session_state["selection"]


def select_second(selection: Selection | None) -> None:
    """Remember run B and its step, if the page compares two runs."""
    st.session_state["second_selection"] = selection


def second_selection() -> Selection:
    return st.session_state["second_selection"]


def run_and_step() -> dict[str, str]:
    """Return the run and the step that are shown, as a link writes them, even if the URL leaves them to the newest."""
    shown = st.session_state.get("selection")
    if shown is None:
        return {}
    return {"run": shown.slug} | ({} if shown.step is None else {"step": str(shown.step)})


def put(**values: str) -> None:
    """Select values of pickers from code.

    The browser hears of them when the page is drawn. If its timer has sent a request just before, this brings the older
    values once more, which `differs_from_page` then replaces.
    """
    st.session_state["put"] = {key: (st.session_state.get(key), value) for key, value in values.items()}
    st.session_state.update(values)


def put_run(slug: str) -> None:
    """Select a run from code, and its latest step."""
    put(run=slug, step=LATEST)


def remember_pickers() -> None:
    """Remember the values of the pickers, at the end of a run of the page that has shown them."""
    remember({key: st.session_state.get(key) for key in PICKERS})
    if any(st.session_state.get(key) != value for key, (_, value) in st.session_state.get("put", {}).items()):
        del st.session_state["put"]  # somebody has picked another one since then


def remember(values: dict[str, Any]) -> None:
    """Remember the values that widgets had when the page was drawn, by their keys."""
    st.session_state["drawn_values"] = st.session_state.get("drawn_values", {}) | values


def differs_from_page() -> bool:
    """Return whether the browser's widgets differ from what the page was drawn with, once for each difference.

    Streamlit can lose a click on a busy machine. It lets a new run begin before an older one has ended, so that the
    older values replace those of the click; and it skips a fragment whose place on the page has changed. The browser
    then shows the choice, and the page does not. The next request of a timer brings the choice again.
    """
    for key, (before, value) in st.session_state.pop("put", {}).items():
        if st.session_state.get(key) == before:
            st.session_state[key] = value
    drawn = st.session_state.get("drawn_values", {})
    now = {key: st.session_state.get(key, value) for key, value in drawn.items()}
    remember(now)
    return now != drawn


def runs_alone() -> bool:
    """Return whether a fragment runs without the rest of the page."""
    context = get_script_run_ctx()
    return context is not None and bool(context.fragment_ids_this_run)


def set_source(source: str) -> None:
    st.session_state["source"] = source


def source() -> str:
    """Return the line that says which run, step and file the pictures of the selected step show."""
    return st.session_state.get("source", "")


def next_run_number() -> int:
    """Return a number that no run of the page had before.

    A component that gets a new number draws again, even if a run of the page shows the same data as before a drag.
    """
    number = st.session_state["runs_shown"] = st.session_state.get("runs_shown", 0) + 1
    return number
