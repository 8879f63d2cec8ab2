"""A row of buttons of which one is pressed, and which the URL names."""

from collections.abc import Callable, Sequence

import streamlit as st


def choose_one(
    label: str,
    options: Sequence[str],
    default: str,
    key: str,
    *,
    hide_label: bool = False,
    on_change: Callable[[], None] | None = None,
) -> str:
    """Show the buttons, and return the pressed one.

    An address that gives the key no value, such as `?part=`, presses none, although one is required.
    """
    pressed = st.segmented_control(
        label, options, default=default, key=key, bind="query-params", required=True, on_change=on_change,
        label_visibility="collapsed" if hide_label else "visible",
    )  # fmt: skip
    return pressed or default
