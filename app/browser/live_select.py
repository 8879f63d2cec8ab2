"""What a select slider changes moves while it is dragged; `st.select_slider` reports only when it is let go."""

from collections.abc import Sequence

from streamlit.components.v2 import component

from browser.sources import script

_mount = component("rlcorr_live_select", js=script("live_select.js"), isolate_styles=False)


def live_select(slider: str, values: Sequence[float], *, address: str) -> None:
    """While the select slider with this key, which stands on the page already, moves over these values, `address` is
    asked (see drag.py). Draws nothing by itself."""
    _mount(data={"slider": slider, "values": list(values), "address": address}, key=f"live_{slider}")
