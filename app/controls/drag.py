"""Addresses for sliders that are dragged without a run of the page: a bound, or the batch size.

A run takes Streamlit 50 ms and the browser 40 more before anything is drawn. So a page offers two URLs of its
own. The first returns the strip of a slider, in which the browser looks up everything. The second computes one value
on request, until the strip is ready or if there is none. An offer belongs to the session that made it and ends with
it. Only the browser of that session knows the URLs.
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
from components.live_part import LiveContent
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlcorr.errors import UsageError
from rlcorr.strips.packing import Package, pack


@dataclass(frozen=True, eq=False)
class Offer:
    """The content for a value. `answer` raises `UsageError` for a value that is not allowed."""

    answer: Callable[[float], LiveContent]


@dataclass(frozen=True, eq=False)
class StripOffer:
    """The strip of a slider. `make` raises `UsageError` if the correction refuses one of the slider values."""

    make: Callable[[], Package]


_STRIPS: weakref.WeakValueDictionary[str, StripOffer] = weakref.WeakValueDictionary()
_OFFERS: weakref.WeakValueDictionary[str, Offer] = weakref.WeakValueDictionary()
# One request per core at a time, in the order of arrival. Thirty requests that share two cores would all be slow.
_WORKERS = ThreadPoolExecutor(os.cpu_count())


def offer(key: str, answer: Callable[[float], LiveContent]) -> str:
    """Return the address that answers from now on, relative to the app's own; each run of the page has the same one."""
    ticket = st.session_state.setdefault(f"{key}_ticket", secrets.token_urlsafe(16))
    st.session_state[f"{key}_offer"] = _OFFERS[ticket] = Offer(answer)
    return f"moved/{ticket}"


def offer_strip(key: str, strip_key: str, make: Callable[[], Package]) -> str:
    """Return the address of the packed strip; it is the same in each run of the page with the same `strip_key`."""
    offered = st.session_state.get(f"{key}_strip_offer")
    if offered is None or offered[0] != strip_key:
        ticket, offered_strip = secrets.token_urlsafe(16), StripOffer(make)
        st.session_state[f"{key}_strip_offer"] = offered = (strip_key, ticket, offered_strip)
        _STRIPS[ticket] = offered_strip
    return f"strips/{offered[1]}"


async def get_strip(request: Request) -> Response:
    """Answer GET strips/TICKET with the strip's bytes; 404 if the offer has ended, 400 if the correction refuses."""
    offered = _STRIPS.get(request.path_params["ticket"])
    if offered is None:
        return PlainTextResponse("This page is no longer open.", 404)
    try:
        body = await asyncio.get_running_loop().run_in_executor(_WORKERS, lambda: pack(offered.make()))
    except UsageError as error:
        return PlainTextResponse(str(error), 400)
    return Response(body, media_type="application/octet-stream")


async def get_changes(request: Request) -> Response:
    """Answer GET moved/TICKET?at=VALUE with JSON of what changes; 404 if the offer has ended, 400 for a wrong value."""
    offered = _OFFERS.get(request.path_params["ticket"])
    if offered is None:
        return PlainTextResponse("This page is no longer open.", 404)
    try:
        value = float(request.query_params.get("at", ""))
        body = await asyncio.get_running_loop().run_in_executor(_WORKERS, _packed_changes, offered, value)
    except (UsageError, ValueError) as error:
        return PlainTextResponse(str(error), 400)
    return Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})


def _packed_changes(offered: Offer, value: float) -> bytes:
    """Pack lightly here. Streamlit would pack as hard as it can, which takes longer than the correction."""
    return gzip.compress(json.dumps(offered.answer(value).changes()).encode(), compresslevel=1)


ROUTES = [Route("/moved/{ticket}", get_changes), Route("/strips/{ticket}", get_strip)]
