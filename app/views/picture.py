"""How a view shows a figure: redrawn in place, so that it does not blink while a threshold is dragged.

st.plotly_chart (1.67) derives its identity from the figure, so it mounts a new chart whenever the figure changes: blank
for about 100 ms, and its zoom is lost. This component keeps its element and hands the figure to Plotly.react, with the
Plotly that Streamlit itself brings.
"""

from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from rlcorr.plots import Figure

JS = """
// Where a click lies on the horizontal axis. Plotly's own event needs a point under the mouse, and forgets it when the
// picture is redrawn.
const clicked = (box, event) => {
  const area = event.target.closest(".nsewdrag")
  if (box.send && area) box.send(box._fullLayout.xaxis.p2d(event.clientX - area.getBoundingClientRect().left))
}

export default function ({ data, parentElement, setTriggerValue }) {
  let box = parentElement.querySelector(".rl-picture")
  if (!box) {
    box = document.createElement("div")
    box.className = "rl-picture"
    box.setAttribute("role", "img")
    box.addEventListener("click", (event) => clicked(box, event))
    parentElement.appendChild(box)
  }
  box.setAttribute("aria-label", data.alt)
  box.send = data.clicks && ((x) => setTriggerValue("click", { x }))
  const figure = JSON.parse(data.figure)
  box.style.height = figure.layout.height + "px"
  clearTimeout(box.waiting)
  const draw = () => {
    if (!window.Plotly) { box.waiting = setTimeout(draw, 30); return }
    const style = getComputedStyle(box)
    figure.layout.font = { color: style.color, family: style.fontFamily, size: 12 }
    window.Plotly.react(box, figure.data, figure.layout, { displayModeBar: false, responsive: true })
  }
  draw()
  return () => setTimeout(() => { if (!box.isConnected && window.Plotly) window.Plotly.purge(box) })
}
"""

# Not isolated: Plotly puts its style sheet into the document, which a shadow root would not see.
_mount = component("rlcorr_picture", js=JS, isolate_styles=False)


def picture(title: str, figure: Figure, *, key: str, caption: str, on_click: Callable[[], None] | None = None) -> None:
    """A heading, the figure, and its caption, which is also its text alternative. Title and caption are Markdown.

    After a click inside the axes `on_click` is called, and st.session_state[key]["click"]["x"] says where."""
    st.markdown(f"**{title}**")
    data = {"figure": figure.to_json(), "alt": f"{title}. {caption}", "clicks": on_click is not None}
    listening: dict[str, Any] = {} if on_click is None else {"on_click_change": on_click}
    _mount(data=data, key=key, **listening)
    st.caption(caption)


def load_plotly() -> None:
    """A hidden chart: with the first chart of a page, Streamlit loads its Plotly as window.Plotly."""
    st.html("<style>.st-key-load_plotly { display: none }</style>")
    with st.container(key="load_plotly"):
        st.plotly_chart(Figure(layout={"template": "none"}), key="loads_plotly", alt="Nothing")
