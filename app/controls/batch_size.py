"""The number of answers in a batch: in the URL as `answers`, and the same in every view."""

from collections.abc import Callable

import streamlit as st
from components.live_part import LiveContent, Slider
from data.sketches import BATCH_SIZES
from state import address, notices, session
from text import gradient as say

from controls import drag
from rlcorr.errors import UsageError
from rlcorr.gradients import report
from rlcorr.strips.packing import Package

KEY = "answers"
USUAL = report.BATCH_SIZES[0]


def batch_size() -> int:
    """Show the picker and return B. `notices.sentences(KEY)` names a wrong value in the URL."""
    session.restore(KEY)
    picked = st.select_slider(
        say.BATCH_SIZE, BATCH_SIZES, USUAL, key=KEY, bind="query-params", help=say.BATCH_SIZE_IS,
        on_change=notices.clear, args=(KEY,),
    )  # fmt: skip
    st.session_state[f"last_{KEY}"] = picked
    return picked


def live_batch_size() -> int:
    """Return B for a live part with its slider: from the URL, or the last one if the page was left and came back."""
    returning = address.take_returning(KEY)
    raw, last = address.read(KEY), st.session_state.get(f"last_{KEY}", USUAL)
    if raw is None:
        size = last if returning else USUAL
    else:
        size = int(raw) if raw in map(str, BATCH_SIZES) else USUAL
    _put(size, done=True)
    return size


def slider(answer: Callable[[int], LiveContent], strip_key: str, strip: Callable[[], Package]) -> drag.Dragged:
    """Return the slider of the batch size for a live part.

    Its generation is its value, so a new value in the URL moves the thumb. Strips with the same `strip_key` are equal.
    """
    size = st.session_state[f"last_{KEY}"]
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
    """Remember the size, and write the URL once it is final (`done`)."""
    st.session_state[f"last_{KEY}"] = size
    if done:
        address.write({KEY: None if size == USUAL else str(size)})


def _checked(value: float) -> int:
    if value not in BATCH_SIZES:
        raise UsageError(f"{value:g} answers are not offered; offered: {', '.join(map(str, BATCH_SIZES))}.")
    return int(value)


def check_url() -> None:
    allowed = [str(size) for size in BATCH_SIZES]
    notices.check_url(
        KEY, allowed, lambda raw: say.WRONG_BATCH_SIZE.format(raw=raw, usual=USUAL, allowed=", ".join(allowed))
    )
