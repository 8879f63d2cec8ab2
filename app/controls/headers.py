"""Headers of every answer: what a page of the app may load, who may show it in a frame, and whose pages may ask."""

from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'"
)
"""Everything comes from this server. Streamlit and plotly need inline scripts and styles, and eval."""
UNFRAMED = "; frame-ancestors 'self'"
"""No page of another site may show the app in a frame."""


class SafeHeaders:
    """ASGI middleware that adds the headers."""

    def __init__(self, app: ASGIApp, framed: bool) -> None:
        self._app = app
        self._headers = {
            "Content-Security-Policy": POLICY if framed else POLICY + UNFRAMED,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        with suppress(ClientDisconnect):  # a browser that closes in the middle of an upload is no error of the server
            await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class OwnPages:
    """ASGI middleware that refuses requests of other sites' pages.

    Streamlit would ask a server outside for the address of this machine, to know whether such a page is one of its own.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            names = self._hosts | {urlsplit(f"//{headers.get('host', '')}").hostname}
            if origin is not None and urlsplit(origin).hostname not in names:
                await PlainTextResponse("This page belongs to another site.", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)
