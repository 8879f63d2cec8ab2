"""How many answers are in a batch: in the URL as `answers`, and the same in every view that asks."""

from collections.abc import Callable

import streamlit as st
from components.live_part import Moving, Slider
from data.sketches import BATCH_SIZES
from state import address, notices, session
from text import gradient as say

from controls import drag
from controls.live import Dragged
from rlcorr.errors import UsageError
from rlcorr.gradients import report
from rlcorr.strips.packing import Package

KEY = "answers"
USUAL = report.BATCH_SIZES[0]


def batch_size() -> int:
    """B; what is wrong in the URL is said by `notices.sentences(KEY)`."""
    session.restore(KEY)
    picked = st.select_slider(
        say.BATCH_SIZE, BATCH_SIZES, USUAL, key=KEY, bind="query-params", help=say.BATCH_SIZE_IS,
        on_change=notices.clear, args=(KEY,),
    )  # fmt: skip
    st.session_state[f"last_{KEY}"] = picked
    return picked


def moving_size() -> int:
    """B where its slider is part of what moves: from the URL, or as it was before its page was left."""
    came_back = st.session_state.pop(f"{KEY}_came_back", False)
    raw, last = address.read(KEY), st.session_state.get(f"last_{KEY}", USUAL)
    if raw is None:
        size = last if came_back else USUAL
    else:
        size = int(raw) if raw in map(str, BATCH_SIZES) else USUAL
    _put(size, done=True)
    return size


def slider(answer: Callable[[int], Moving], of: str, strip: Callable[[], Package]) -> Dragged:
    """Where it stands is its generation: the thumb is moved when the URL says something else. Its `strip` is known by
    what it is `of`."""
    size = st.session_state[f"last_{KEY}"]
    address = drag.offer(KEY, lambda at: answer(_offered(at)))
    moved = Slider(
        KEY, say.BATCH_SIZE, BATCH_SIZES, size, generation=size, address=address,
        strip=drag.offer_strip(KEY, of, strip), help=say.BATCH_SIZE_IS,
    )  # fmt: skip
    return Dragged(moved, _moved)


def _moved(value: float, done: bool) -> None:
    notices.clear(KEY)
    _put(int(value), done=done)


def _put(size: int, *, done: bool) -> None:
    """Remember it, and write the URL once it is final."""
    st.session_state[f"last_{KEY}"] = size
    if done:
        address.write({KEY: None if size == USUAL else str(size)})


def _offered(at: float) -> int:
    if at not in BATCH_SIZES:
        raise UsageError(f"{at:g} answers are not offered; offered: {', '.join(map(str, BATCH_SIZES))}.")
    return int(at)


def check_url() -> None:
    allowed = [str(size) for size in BATCH_SIZES]
    notices.check_url(
        KEY, allowed, lambda raw: say.WRONG_BATCH_SIZE.format(raw=raw, usual=USUAL, allowed=", ".join(allowed))
    )
