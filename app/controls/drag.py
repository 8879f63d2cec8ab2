"""What a threshold or a batch size changes while it is dragged, answered without a rerun of the page.

A rerun takes Streamlit 50 ms and the browser 40 more before anything is drawn. So a page offers an address of its own:
asked for a value, it says what moves, and nothing else. The offer lives in the session that made it and ends with it;
only that session's browser knows the address.
"""

import asyncio
import gzip
import json
import os
import secrets
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import streamlit as st
from browser.restating import Written
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlcorr.errors import UsageError
from rlcorr.figures.correction import Figure


@dataclass(frozen=True)
class Moved:
    """What moves with what is dragged: numbers and texts, and pictures by their key."""

    written: Written
    figures: Mapping[str, Figure]


@dataclass(frozen=True, eq=False)
class Offer:
    """Raises `UsageError` for a value that has no answer."""

    answer: Callable[[float], Moved]


_OFFERS: weakref.WeakValueDictionary[str, Offer] = weakref.WeakValueDictionary()
# As many at once as there are cores, in the order in which they came: thirty that share two cores are all slow.
_WORKERS = ThreadPoolExecutor(os.cpu_count())


def offer(key: str, answer: Callable[[float], Moved]) -> str:
    """The address that answers from now on, relative to the app's own; the same one for each run of the page."""
    ticket = st.session_state.setdefault(f"{key}_ticket", secrets.token_urlsafe(16))
    st.session_state[f"{key}_offer"] = _OFFERS[ticket] = Offer(answer)
    return f"moved/{ticket}"


async def moved(request: Request) -> Response:
    """GET moved/TICKET?at=VALUE: `Moved` as JSON; 404 where the offer has ended, 400 for a value without an answer."""
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
    answer = offered.answer(value)
    figures = {key: figure.to_json() for key, figure in answer.figures.items()}
    return gzip.compress(json.dumps(answer.written.sent() | {"figures": figures}).encode(), compresslevel=1)


ROUTE = Route("/moved/{ticket}", moved)
