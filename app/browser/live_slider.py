"""A range input that reports while it is dragged; st.slider reports only when the mouse is released."""

from collections.abc import Callable

import streamlit as st
from remembered.fields import Bound
from streamlit.components.v2 import component

from browser.sources import script, style

HTML = """<label><span></span><b aria-hidden="true"></b>
<input type="range" min="0" max="600" step="1"></label>"""

_mount = component("rlcorr_live_slider", html=HTML, css=style("live_slider.css"), js=script("live_slider.js"))


def live_slider(
    bound: Bound, value: float, *, generation: int, key: str, address: str | None,
    on_change: Callable[[float, bool], None],
) -> None:  # fmt: skip
    """Over the whole range of the bound. A new `generation` puts the thumb back on `value`. While it moves it asks
    `address` (see drag.py); without one, the page runs again and again. `on_change` is called before it does, with the
    value, and whether it has been let go."""

    def changed() -> None:
        at = st.session_state[key]["at"]
        if at["generation"] == generation:
            on_change(float(at["value"]), bool(at["done"]))

    data = {"label": bound.label, "value": value, "generation": generation, "address": address}
    data |= {"low": bound.low - bound.offset, "high": bound.high - bound.offset, "offset": bound.offset}
    _mount(data=data, key=key, on_at_change=changed)
