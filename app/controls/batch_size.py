"""The number of answers in a batch: in the URL as `answers`, and the same in every view."""

from collections.abc import Callable

import streamlit as st
from components.live_part import LiveContent, Slider
from data.sketches import BATCH_SIZES
from state import address, notices
from text import gradient as say

from controls import drag
from rlcorr.errors import UsageError
from rlcorr.gradients import report
from rlcorr.strips.packing import Package

KEY = "answers"
USUAL = report.BATCH_SIZES[0]


def take() -> None:
    """Take over the size that the address names; `notices.sentences(KEY)` says what is wrong with it."""
    address.restore(KEY, USUAL, _parsed)


def batch_size() -> int:
    """Show the picker and return B."""
    take()
    picked = st.select_slider(
        say.BATCH_SIZE, BATCH_SIZES, key=KEY, help=say.BATCH_SIZE_IS, on_change=notices.clear, args=(KEY,)
    )
    address.say(KEY, picked, USUAL)
    return picked


def live_batch_size() -> int:
    """Return B for a live part with its slider."""
    take()
    size = st.session_state[KEY]
    _put(size, done=True)
    return size


def slider(answer: Callable[[int], LiveContent], strip_key: str, strip: Callable[[], Package]) -> drag.Dragged:
    """Return the slider of the batch size for a live part.

    Its generation is its value, so a new value in the URL moves the thumb. Strips with the same `strip_key` are equal.
    """
    size = st.session_state[KEY]
    offered = drag.offer(KEY, lambda value: answer(_checked(value)))
    of_size = Slider(
        KEY, say.BATCH_SIZE, BATCH_SIZES, size, generation=size, address=offered,
        strip=drag.offer_strip(KEY, strip_key, strip), help=say.BATCH_SIZE_IS,
    )  # fmt: skip
    return drag.Dragged(of_size, _put_moved)


def _put_moved(value: float, done: bool) -> None:
    notices.clear(KEY)
    _put(int(value), done=done)


def _put(size: int, *, done: bool) -> None:
    """Remember the size, and put it into the address once it is final (`done`)."""
    st.session_state[KEY] = size
    if done:
        address.say(KEY, size, USUAL)


def _checked(value: float) -> int:
    if value not in BATCH_SIZES:
        raise UsageError(f"{value:g} answers are not offered; offered: {', '.join(map(str, BATCH_SIZES))}.")
    return int(value)


def _parsed(raw: str) -> int:
    allowed = [str(size) for size in BATCH_SIZES]
    if raw not in allowed:
        raise UsageError(say.WRONG_BATCH_SIZE.format(raw=raw, usual=USUAL, allowed=", ".join(allowed)))
    return int(raw)
