"""How many answers are in a batch: in the URL as `answers`, and the same in every view that asks."""

import streamlit as st
from data.sketches import BATCH_SIZES
from remembered import notices, session
from words import gradient as say

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


def check_url() -> None:
    allowed = [str(size) for size in BATCH_SIZES]
    notices.check_url(
        KEY, allowed, lambda raw: say.WRONG_BATCH_SIZE.format(raw=raw, usual=USUAL, allowed=", ".join(allowed))
    )
