"""How a view shows a figure: redrawn in place, so that it does not blink while a threshold is dragged.

st.plotly_chart (1.67) derives its identity from the figure, so it mounts a new chart whenever the figure changes: blank
for about 100 ms, and its zoom is lost. This component keeps its element and hands the figure to Plotly.react, with the
Plotly that Streamlit itself brings.
"""

from collections.abc import Callable
from typing import Any

import streamlit as st
from state import session
from streamlit.components.v2 import component

from components.markdown import plain_text
from components.sources import script, style
from rlcorr.figures.canvas import Figure, spoken

# Not isolated: Plotly puts its style sheet into the document, which a shadow root would not see.
_mount = component("rlcorr_picture", css=style("picture.css"), js=script("picture.js"), isolate_styles=False)


def picture(
    title: str,
    figure: Figure,
    *,
    key: str,
    caption: str,
    source: str | None = None,
    on_click: Callable[[], None] | None = None,
) -> None:
    """A heading, the figure, and its caption. Title and caption are Markdown; they are its text alternative, together
    with the values that its lines and bars reach.

    The figure carries `source`, by default that of the chosen step, in itself and where it is saved, a line for each of
    its lines. After a click inside the axes `on_click` is called, and st.session_state[key]["click"]["x"] says where.
    """
    st.markdown(f"**{title}**")
    data = drawn(figure, title, caption, session.source() if source is None else source)
    data |= {"clicks": on_click is not None}
    listening: dict[str, Any] = {} if on_click is None else {"on_click_change": on_click}
    _mount(data=data, key=key, **listening)
    st.caption(caption)


def drawn(figure: Figure, title: str, caption: str, source: str) -> dict[str, Any]:
    """A figure as `pictures.js` takes it: with its text alternative, and the line that says where it comes from."""
    name, reaches = plain_text(title), spoken(figure)
    alt = f"{name}. {plain_text(caption)}" + (f" {reaches}." if reaches else "")
    return {"figure": figure.to_json(), "title": name, "alt": alt, "stamp": source}


def load_plotly() -> None:
    """A hidden chart: with the first chart of a page, Streamlit loads its Plotly as window.Plotly."""
    st.html("<style>.st-key-load_plotly { display: none }</style>")
    with st.container(key="load_plotly"):
        st.plotly_chart(Figure(layout={"template": "none"}), key="loads_plotly", alt="Nothing")
