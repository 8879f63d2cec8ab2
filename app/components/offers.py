"""Addresses that answer without a run of the page: the strip of a slider, and what a watched part shows now.

A run takes Streamlit 50 ms and the browser 40 more before anything is drawn. An offer belongs to the session that made
it and ends with it. Only the browser of that session knows its address.
"""

import asyncio
import os
import secrets
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import streamlit as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlcorr.errors import UsageError

MEDIA_TYPES = {"strips": "application/octet-stream", "watched": "application/json"}
"""Kind of offer, which its address begins with → the type of the answer."""


@dataclass(eq=False)
class Offer:
    """What an address answers. `answer` raises `UsageError` if the correction refuses a slider value."""

    answer: Callable[[], bytes]
    kind: str
    strip: bytes | None = None
    """What was answered, if it stays the same."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


_OFFERS: weakref.WeakValueDictionary[str, Offer] = weakref.WeakValueDictionary()
# One request per core at a time, in the order of arrival. Thirty requests that share two cores would all be slow.
_WORKERS, _TURNS = ThreadPoolExecutor(os.cpu_count()), asyncio.Semaphore(os.cpu_count() or 1)


def offer(kind: str, key: str, answer: Callable[[], bytes], *, version: str = "") -> str:
    """Return the address that answers from now on; it is the same in each run of the page with the same `version`.

    The server calls `answer` later, without a visitor's session, so it must not use Streamlit.
    """
    name = f"{key}_{kind}_offer"
    before = st.session_state.get(name)
    _, ticket, same = before if before and before[0] == version else ("", secrets.token_urlsafe(16), None)
    _OFFERS[ticket] = offered = Offer(answer, kind, same and same.strip)
    st.session_state[name] = version, ticket, offered
    return f"{kind}/{ticket}"


async def get_offered(request: Request) -> Response:
    """Answer with what is offered; 404 if the offer has ended, 400 if the correction refuses.

    However many requests somebody sends, one of an address is answered at a time, and none whose browser has gone.
    """
    offered = _OFFERS.get(request.path_params["ticket"])
    if offered is None:
        return PlainTextResponse("This page is no longer open.", 404)
    async with offered.turn, _TURNS:
        if await request.is_disconnected():
            return PlainTextResponse("Nobody waits for this.", 499)
        try:
            if (body := offered.strip) is None:
                body = await asyncio.get_running_loop().run_in_executor(_WORKERS, offered.answer)
        except UsageError as error:
            return PlainTextResponse(str(error), 400)
        if offered.kind == "strips":
            offered.strip = body
    return Response(body, media_type=MEDIA_TYPES[offered.kind])


ROUTES = [Route("/strips/{ticket}", get_offered), Route("/watched/{ticket}", get_offered)]
