"""How many answers are in a batch: in the URL as `answers`, and the same in every view that asks."""

from collections.abc import Callable

import streamlit as st
from browser.live_select import live_select
from data.sketches import BATCH_SIZES
from remembered import notices, session
from words import gradient as say

from controls import drag
from rlcorr.errors import UsageError
from rlcorr.gradients import report

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


def follow(answer: Callable[[int], drag.Moved]) -> None:
    """What moves with B does so while it is dragged; to be called below the slider."""
    live_select(KEY, BATCH_SIZES, address=drag.offer(KEY, lambda at: answer(_offered(at))))


def _offered(at: float) -> int:
    if at not in BATCH_SIZES:
        raise UsageError(f"{at:g} answers are not offered; offered: {', '.join(map(str, BATCH_SIZES))}.")
    return int(at)


def check_url() -> None:
    allowed = [str(size) for size in BATCH_SIZES]
    notices.check_url(
        KEY, allowed, lambda raw: say.WRONG_BATCH_SIZE.format(raw=raw, usual=USUAL, allowed=", ".join(allowed))
    )
