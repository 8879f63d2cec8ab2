"""The token that the Tokens view has opened; in the URL as token=ROW.COLUMN."""

import re
from collections.abc import Sequence

import streamlit as st

from state import address, notices
from state.session import selection

KEY = "token"
TokenIndex = tuple[int, int]
"""Row and column of a token, both counted from 0; in the URL as token=ROW.COLUMN."""


def opened() -> TokenIndex | None:
    """Return the token that somebody opened, or that the URL names."""
    return st.session_state.get("opened")


def open_token(token: TokenIndex | None) -> None:
    """Remember the token for the address; None closes it."""
    st.session_state["opened"] = token
    notices.clear(KEY)
    _say()


def notice() -> str | None:
    return st.session_state.get(f"{KEY}_notice")


def sync(lengths: Sequence[int]) -> None:
    """Take over the token that the address names. Another step closes the token.

    `lengths` are the numbers of tokens of the step's responses.
    """
    step = (selection().slug, selection().step)
    is_another_step = st.session_state.get("opened_in", step) != step
    st.session_state["opened_in"] = step
    if address.takes(KEY):
        _take(lengths, address.text(KEY))
    elif is_another_step:
        open_token(None)
    _say()


def _say() -> None:
    token = opened()
    address.write({KEY: None if token is None else f"{token[0]}.{token[1]}"})


def _take(lengths: Sequence[int], raw: str | None) -> None:
    """Open the token of the address. A wrong one is named until another token is opened."""
    notices.clear(KEY)
    token = _parse(raw or "")
    exists = token is not None and token[0] < len(lengths) and token[1] < lengths[token[0]]
    st.session_state["opened"] = token if exists else None
    if raw is None or exists:
        return
    if token is None:
        wrong = f"token={raw} is not a token: it must be ROW.COLUMN, such as 3.0."
    else:
        row = f"; response {token[0]} has {lengths[token[0]]} tokens" if token[0] < len(lengths) else ""
        wrong = f"token={raw} is not in this step: it has {len(lengths)} responses{row}, all counted from 0."
    notices.put(KEY, f"{wrong} Showing the one whose ratio is furthest from 1.")


def _parse(raw: str) -> TokenIndex | None:
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", raw)
    return None if match is None else (int(match[1]), int(match[2]))
