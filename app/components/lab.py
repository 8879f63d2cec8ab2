"""The Lab's component: handles, and pictures of training runs that the browser makes itself."""

from collections.abc import Mapping
from typing import Any

import state
from streamlit.components.v2 import component

from components.sources import script, style

STYLES = ("live_part.css", "picture.css", "lab.css")
_mount = component("rlcorr_lab", css="".join(map(style, STYLES)), js=script("lab.js"), isolate_styles=False)


def lab_part(data: Mapping[str, Any]) -> None:
    """Show the Lab, of which a page has one. `data` is what `lab_part.js` reads."""
    generations = {key: state.generation(key) for key in data["settings"]}
    _mount(data={**data, "generations": generations}, key=state.LIVE, on_moved_change=state.press)
