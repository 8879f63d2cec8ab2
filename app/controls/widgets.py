"""Widgets of fields of state.py: buttons or a list of which one is chosen, a choice of several, a box, a batch size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import state
import streamlit as st
from components.live_part import Slider, offered
from data.sketches import BATCH_SIZES
from streamlit.delta_generator import DeltaGenerator
from text import phrases

from rlcorr.strips.packing import Package


def buttons(key: str, label: str, options: Sequence[str], *, hide_label: bool = False) -> str:
    """Show the options as buttons, and return the pressed one."""
    return str(
        st.segmented_control(
            label, options, default=state.get(key), key=state.widget(key), required=True,
            label_visibility="collapsed" if hide_label else "visible",
        )
    )  # fmt: skip


def pick(
    key: str, label: str, options: Sequence[Any], *, written: Callable[[Any], str] = str, help: str | None = None
) -> Any:
    """Show a list of the options, and return the picked one; the first one if the field has none of them."""
    value = state.keep_to(key, options)
    index = options.index(value) if value in options else 0
    return st.selectbox(label, options, index=index, key=state.widget(key), format_func=written, help=help)


def pick_several(
    key: str, label: str, options: Sequence[str], *, written: Callable[[str], str] = str, **more: Any
) -> list[str]:
    """Show a list of which several are picked, and return those."""
    default = state.keep_to(key, options)
    return st.multiselect(label, options, default=default, key=state.widget(key), format_func=written, **more)


def pick_label(key: str, label: str, labels: Mapping[str, str]) -> str:
    """Show a list of labels, and return the name whose label is picked. `labels`: name → label."""
    return str(pick(key, label, list(labels), written=labels.__getitem__))


def switch(key: str, label: str, *, help: str | None = None) -> bool:
    return st.toggle(label, value=state.get(key), key=state.widget(key), help=help)


def folding(key: str, label: str) -> DeltaGenerator:
    """Show a box that is open if its field is true. To Streamlit, another `expanded` makes it another box."""
    name, first = state.widget(key), f"{key}_first"
    if name not in st.session_state:
        st.session_state[first] = state.get(key)
    return st.expander(label, expanded=st.session_state[first], key=name, on_change="rerun")


def number(key: str, label: str, low: float, high: float, **more: Any) -> float:
    """Show a box for a number, of the type of its field."""
    value = state.get(key)
    kind = type(value)
    return st.number_input(label, kind(low), kind(high), value, key=state.widget(key), **more)


def batch_size() -> int:
    """Show the number of answers in a batch as a picker, and return it."""
    size: int = state.get("answers")
    label, help = phrases.BATCH_SIZE, phrases.BATCH_SIZE_IS
    st.select_slider(label, BATCH_SIZES, value=size, key=state.widget("answers"), help=help)
    return size


def batch_size_slider(version: str, make: Callable[[], Package]) -> Slider:
    """Return the same as a slider of a live part. Strips with the same `version` are equal."""
    value, help = state.get("answers"), phrases.BATCH_SIZE_IS
    return offered("answers", phrases.BATCH_SIZE, BATCH_SIZES, value, make, version, help=help)
