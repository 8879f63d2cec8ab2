"""Answers to a dragged threshold write over the page, and a run of the page takes it back.

React writes only what is new to it, and does not know of what an answer has written. A run whose outcome is what React
showed last, such as one after the Back button, would leave the answer's numbers and pictures where they are. So every
run ends by writing its own.
"""

from collections.abc import Mapping, Sequence

import streamlit as st
from streamlit.components.v2 import component

WRITE = """
const write = (texts) => {
  for (const [css, values] of Object.entries(texts)) {
    const elements = document.querySelectorAll(css)
    values.forEach((text, i) => {
      let node = elements[i]
      while (node?.lastChild) node = node.lastChild
      if (node && node.nodeValue !== text) node.nodeValue = text  // React keeps its text node, and goes on from there
    })
  }
}
"""

JS = """
export default function ({ data }) {
  write(data.texts)
  for (const key of data.pictures) document.querySelector(`.st-key-${key} .rl-picture`)?.restate()
  window.dispatchEvent(new Event("rlcorr-run"))  // a threshold that is held asks again
}
"""

_mount = component("rlcorr_restating", js=WRITE + JS, isolate_styles=False)


def restate(texts: Mapping[str, Sequence[str]], pictures: Sequence[str]) -> None:
    """What this run has shown: texts as in `drag.Moved`, and the keys of pictures. Draws nothing of its own."""
    run = st.session_state["runs_shown"] = st.session_state.get("runs_shown", 0) + 1
    _mount(data={"texts": dict(texts), "pictures": list(pictures), "run": run}, key="restated")
