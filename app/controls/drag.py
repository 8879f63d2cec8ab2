"""What a threshold or a batch size changes while it is dragged, answered without a rerun of the page.

A rerun takes Streamlit 50 ms and the browser 40 more before anything is drawn. So a page offers addresses of its own:
one gives the strip of a slider, in which the browser looks everything up; the other, for as long as that takes and for
what has no strip, is asked for a value and says what moves, and nothing else. An offer lives in the session that made
it and ends with it; only that session's browser knows the address.
"""

import asyncio
import gzip
import json
import os
import secrets
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import streamlit as st
from components.live_part import Moving
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlcorr.errors import UsageError
from rlcorr.strips.packing import Package, pack


@dataclass(frozen=True, eq=False)
class Offer:
    """Raises `UsageError` for a value that has no answer."""

    answer: Callable[[float], Moving]


@dataclass(frozen=True, eq=False)
class StripOffer:
    """Raises `UsageError` where a place has no answer."""

    make: Callable[[], Package]


_STRIPS: weakref.WeakValueDictionary[str, StripOffer] = weakref.WeakValueDictionary()
_OFFERS: weakref.WeakValueDictionary[str, Offer] = weakref.WeakValueDictionary()
# As many at once as there are cores, in the order in which they came: thirty that share two cores are all slow.
_WORKERS = ThreadPoolExecutor(os.cpu_count())


def offer(key: str, answer: Callable[[float], Moving]) -> str:
    """The address that answers from now on, relative to the app's own; the same one for each run of the page."""
    ticket = st.session_state.setdefault(f"{key}_ticket", secrets.token_urlsafe(16))
    st.session_state[f"{key}_offer"] = _OFFERS[ticket] = Offer(answer)
    return f"moved/{ticket}"


def offer_strip(key: str, of: str, make: Callable[[], Package]) -> str:
    """The address that gives the strip, packed; the same one for each run of the page that shows the same, which `of`
    says."""
    offered = st.session_state.get(f"{key}_strip_offer")
    if offered is None or offered[0] != of:
        ticket, offered_strip = secrets.token_urlsafe(16), StripOffer(make)
        st.session_state[f"{key}_strip_offer"] = offered = (of, ticket, offered_strip)
        _STRIPS[ticket] = offered_strip
    return f"strips/{offered[1]}"


async def packed_strip(request: Request) -> Response:
    """GET strips/TICKET: the strip's bytes; 404 where the offer has ended, 400 where a place has no answer."""
    offered = _STRIPS.get(request.path_params["ticket"])
    if offered is None:
        return PlainTextResponse("This page is no longer open.", 404)
    try:
        body = await asyncio.get_running_loop().run_in_executor(_WORKERS, lambda: pack(offered.make()))
    except UsageError as error:
        return PlainTextResponse(str(error), 400)
    return Response(body, media_type="application/octet-stream")


async def moved(request: Request) -> Response:
    """GET moved/TICKET?at=VALUE: JSON of what moves; 404 where the offer has ended, 400 for what has no answer."""
    offered = _OFFERS.get(request.path_params["ticket"])
    if offered is None:
        return PlainTextResponse("This page is no longer open.", 404)
    try:
        value = float(request.query_params.get("at", ""))
        body = await asyncio.get_running_loop().run_in_executor(_WORKERS, _answered, offered, value)
    except (UsageError, ValueError) as error:
        return PlainTextResponse(str(error), 400)
    return Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})


def _answered(offered: Offer, value: float) -> bytes:
    """Packed lightly here: Streamlit would do it as thoroughly as it can, which takes longer than the correction."""
    return gzip.compress(json.dumps(offered.answer(value).moved()).encode(), compresslevel=1)


ROUTES = [Route("/moved/{ticket}", moved), Route("/strips/{ticket}", packed_strip)]
