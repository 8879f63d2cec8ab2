"""A figure of a view that is redrawn in place, so that it does not blink while a bound is dragged.

st.plotly_chart (1.67) derives its identity from the figure, so it mounts a new chart whenever the figure changes: blank
for about 100 ms, and its zoom is lost. This component keeps its element and passes the figure to Plotly.react, with the
Plotly that Streamlit itself loads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from components.markdown import inline, plain_text
from components.sources import script, style
from rlcorr.figures.canvas import Figure, text_summary

# Not isolated: Plotly puts its style sheet into the document, which a shadow root would not see.
_mount = component("rlcorr_picture", css=style("picture.css"), js=script("picture.js"), isolate_styles=False)


@dataclass(frozen=True)
class Picture:
    """A figure with a title, a caption, and a sentence `above` them that does not move with a bound; all Markdown."""

    figure: Figure
    title: str
    caption: str
    above: str = ""


def picture(
    key: str, shown: Picture, source: str, *, on_click: Callable[[], None] | None = None, is_named: bool = True
) -> None:
    """Show a picture.

    Args:
        key: Streamlit's key of the component.
        shown: The picture. Title, caption, and the ranges of the lines and bars are the text alternative.
        source: Which run, step and file the figure shows, one text line each; written into the figure and into saved
            copies.
        on_click: Called after a click inside the axes; st.session_state[key]["click"] has the clicked x and y.
        is_named: Whether title and caption are shown. If not, they are only its text alternative.
    """
    if is_named:
        st.markdown(f"**{shown.title}**")
    listening: dict[str, Any] = {} if on_click is None else {"on_click_change": on_click}
    _mount(data=picture_data(shown, source) | {"clicks": on_click is not None}, key=key, **listening)
    if is_named:
        st.caption(shown.caption)


def picture_row(shown: Mapping[str, Picture], source: str, **columns: Any) -> None:
    """Show pictures side by side, by their keys. `columns` has options of `st.columns`."""
    for column, (key, one) in zip(st.columns(len(shown), **columns), shown.items(), strict=True):
        with column:
            picture(key, one, source)


def picture_data(shown: Picture, source: str) -> dict[str, Any]:
    """Return what `pictures.js` needs of a figure, with its text alternative and its source."""
    name, reaches = plain_text(shown.title), text_summary(shown.figure)
    alt = f"{name}. {plain_text(shown.caption)}" + (f" {reaches}." if reaches else "")
    return {"figure": shown.figure.to_json(), "title": name, "alt": alt, "stamp": source}


def headed_data(key: str, shown: Picture, source: str) -> dict[str, Any]:
    """Return the same with the heading and the caption, for a component that shows several pictures."""
    return {"key": key, "heading": inline(shown.title), "caption": inline(shown.caption)} | picture_data(shown, source)


def load_plotly() -> None:
    """Show a hidden chart, because Streamlit loads window.Plotly with the first chart of a page."""
    st.html("<style>.st-key-load_plotly { display: none }</style>")
    with st.container(key="load_plotly"):
        st.plotly_chart(Figure(layout={"template": "none"}), key="loads_plotly", alt="Nothing")
