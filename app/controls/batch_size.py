"""The number of answers in a batch, which Gradient has as a slider of its live part and Compare as a picker."""

from collections.abc import Callable

import state
import streamlit as st
from components.live_part import LiveContent, Slider
from data.sketches import BATCH_SIZES
from text import gradient as say

from controls import drag
from rlcorr.errors import UsageError
from rlcorr.strips.packing import Package

KEY = "answers"


def batch_size() -> int:
    """Show the picker and return B."""
    size: int = state.get(KEY)
    st.select_slider(say.BATCH_SIZE, BATCH_SIZES, value=size, key=state.widget(KEY), help=say.BATCH_SIZE_IS)
    return size


def slider(answer: Callable[[int], LiveContent], strip_key: str, strip: Callable[[], Package]) -> Slider:
    """Return the slider of the batch size. Strips with the same `strip_key` are equal."""
    return Slider(
        KEY, say.BATCH_SIZE, BATCH_SIZES, state.get(KEY), generation=state.generation(KEY),
        address=drag.offer(KEY, lambda value: answer(_checked(value))),
        strip=drag.offer_strip(KEY, strip_key, strip), help=say.BATCH_SIZE_IS,
    )  # fmt: skip


def _checked(value: float) -> int:
    if value not in BATCH_SIZES:
        raise UsageError(f"{value:g} answers are not offered; offered: {', '.join(map(str, BATCH_SIZES))}.")
    return int(value)
