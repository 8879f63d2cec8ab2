"""The token that the Tokens view has opened; in the URL as token=ROW.COLUMN."""

import re
from collections.abc import Sequence

import streamlit as st

from state import address, notices
from state.session import selection

Place = tuple[int, int]
"""Row and column of a token, both counted from 0; in the URL as token=ROW.COLUMN."""


def opened() -> Place | None:
    """The token that somebody opened, or that the URL names."""
    return st.session_state.get("opened")


def open_token(place: Place | None) -> None:
    """Remember it and write the URL."""
    st.session_state["opened"] = place
    notices.clear("token")
    wanted = None if place is None else f"{place[0]}.{place[1]}"
    address.write({"token": wanted})
    st.session_state["token_in_url"] = wanted


def notice() -> str | None:
    return st.session_state.get("token_notice")


def sync(lengths: Sequence[int]) -> None:
    """Take over the token that the URL names, unless it is the one that was seen last. Another step closes the token.

    `lengths` are the numbers of tokens of the step's responses.
    """
    step = (selection().slug, selection().step)
    another = st.session_state.get("opened_in", step) != step
    st.session_state["opened_in"] = step
    came_back = st.session_state.pop("token_came_back", False)
    raw = address.read("token")
    if raw == st.session_state.get("token_in_url"):
        if another:
            open_token(None)
    elif raw is None and came_back and not another:
        open_token(opened())  # the URL was emptied on the way to another view
    else:
        _take_token(raw, lengths)


def _take_token(raw: str | None, lengths: Sequence[int]) -> None:
    """A wrong one stays in the URL, and is named, until another token is opened."""
    notices.clear("token")
    st.session_state["token_in_url"] = raw
    place = _place(raw or "")
    there = place is not None and place[0] < len(lengths) and place[1] < lengths[place[0]]
    st.session_state["opened"] = place if there else None
    if raw is None or there:
        return
    if place is None:
        wrong = f"token={raw} is not a token: it must be ROW.COLUMN, such as 3.0."
    else:
        row = f"; response {place[0]} has {lengths[place[0]]} tokens" if place[0] < len(lengths) else ""
        wrong = f"token={raw} is not in this step: it has {len(lengths)} responses{row}, all counted from 0."
    notices.put("token", f"{wrong} Showing the one furthest from ratio 1.")


def _place(raw: str) -> Place | None:
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", raw)
    return None if match is None else (int(match[1]), int(match[2]))
