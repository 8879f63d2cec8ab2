"""Addresses of parts of the page that show something that goes on (components/watched.py)."""

import asyncio
import json
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st
from components.watched import WatchedContent, watched
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


@dataclass(frozen=True, eq=False)
class Offer:
    """What the part shows now. It is made without a visitor's session."""

    content: Callable[[], WatchedContent]


_OFFERS: weakref.WeakValueDictionary[str, Offer] = weakref.WeakValueDictionary()


def watch(content: Callable[[], WatchedContent], *, key: str, on_press: Callable[[str], None]) -> None:
    """Show the content now, and as it changes. `content` must not use Streamlit: the server calls it later."""
    now, address = content(), None
    if not now.ends:
        ticket = st.session_state.setdefault(f"{key}_ticket", secrets.token_urlsafe(16))
        st.session_state[f"{key}_offer"] = _OFFERS[ticket] = Offer(content)
        address = f"watched/{ticket}"
    watched(now, address, key=key, on_press=on_press)


async def get_content(request: Request) -> Response:
    """Answer GET watched/TICKET with JSON of what the part shows; 404 if the page is not open any more."""
    offered = _OFFERS.get(request.path_params["ticket"])
    if offered is None:
        return PlainTextResponse("This page is no longer open.", 404)
    content = await asyncio.get_running_loop().run_in_executor(None, lambda: offered.content().data())
    return Response(json.dumps(content), media_type="application/json")


ROUTES = [Route("/watched/{ticket}", get_content)]
