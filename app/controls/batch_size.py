"""The number of answers in a batch, which Gradient has as a slider of its live part and Compare as a picker."""

from collections.abc import Callable

import state
import streamlit as st
from components.live_part import Slider
from components.offers import offer
from data.sketches import BATCH_SIZES
from text import gradient as say

from rlcorr.strips.packing import Package, pack

KEY = "answers"


def batch_size() -> int:
    """Show the picker and return B."""
    size: int = state.get(KEY)
    st.select_slider(say.BATCH_SIZE, BATCH_SIZES, value=size, key=state.widget(KEY), help=say.BATCH_SIZE_IS)
    return size


def slider(strip_key: str, strip: Callable[[], Package]) -> Slider:
    """Return the slider of the batch size. Strips with the same `strip_key` are equal."""
    address = offer("strips", KEY, lambda: pack(strip()), version=strip_key)
    return Slider(
        KEY, say.BATCH_SIZE, BATCH_SIZES, state.get(KEY), state.generation(KEY), address, help=say.BATCH_SIZE_IS
    )
