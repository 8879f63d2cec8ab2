"""After every run, the page writes its own numbers and pictures over those that a dragged threshold has left there.

While a threshold is dragged, its answers write into the page behind React's back. React writes only what is new to it:
a run that shows what React showed last, such as one after the Back button, would leave the answer's numbers standing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import streamlit as st
from streamlit.components.v2 import component

from browser.sources import script


@dataclass(frozen=True)
class WrittenNumber:
    """What a headline shows, and the line below it, if it has one."""

    text: str
    beside: str | None


@dataclass(frozen=True)
class Written:
    """Numbers by their label; other texts by the CSS selector of their element."""

    numbers: Mapping[str, WrittenNumber]
    texts: Mapping[str, str]

    def sent(self) -> dict[str, dict]:
        """As `writing.js` takes it."""
        return {"numbers": {label: asdict(number) for label, number in self.numbers.items()}, "texts": dict(self.texts)}


_mount = component("rlcorr_restating", js=script("restating.js"), isolate_styles=False)


def restate(written: Written, pictures: Sequence[str]) -> None:
    """Write what this run has shown, and redraw the pictures with these keys. Draws nothing new."""
    run = st.session_state["runs_shown"] = st.session_state.get("runs_shown", 0) + 1
    _mount(data=written.sent() | {"pictures": list(pictures), "run": run}, key="restated")
