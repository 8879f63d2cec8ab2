"""What happens to every request: headers of the answer, a refusal of other sites' pages, and old addresses.

Each function wraps the app, which is of the standard ASGI.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from secrets import token_hex
from typing import cast
from urllib.parse import urlsplit

from components.sources import script
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.runtime import get_instance
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.url_util import make_url_path

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'"
)
"""Everything comes from this server. Streamlit and plotly need inline scripts and styles, and eval."""
OF_VISITOR, OF_SERVER = 192 << 20, 768 << 20
"""Bytes of files that a visitor, and all visitors, may have in their boxes."""
UPLOAD = re.compile(r"/_stcore/upload_file/([^/]+)/")
UNFRAMED = "; frame-ancestors 'self'"
"""No page of another site may show the app in a frame."""


def safe_headers(app: ASGIApp, framed: bool) -> ASGIApp:
    """Add the headers that say what a page may load, and who may show it in a frame."""
    headers = {
        "Content-Security-Policy": POLICY if framed else POLICY + UNFRAMED,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        with suppress(ClientDisconnect):  # a browser that closes in the middle of an upload is no error of the server
            await app(scope, receive, with_headers if scope["type"] == "http" else send)

    return answer


def completes_page(app: ASGIApp, style: str) -> ASGIApp:
    """Add to Streamlit's page what must be there before its websocket is.

    That is the style, and scripts that show the page at once, say that there is no websocket, and know this server from
    the next one. The style is after Streamlit's own and before those of the page.
    """
    scripts = "".join(f"<script>{{{script(name)}}}</script>" for name in ("first_sight.js", "no_connection.js"))
    added = f"<body data-server='{token_hex(8)}'><style>{style}</style>{scripts}".encode()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_script(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["content-length"]  # the server sends the longer body in chunks
            elif "body" in message:
                message = {**message, "body": message["body"].replace(b"<body>", added)}
            await send(message)

        is_page = scope["type"] == "http" and scope["method"] == "GET" and scope["path"].endswith("/")
        await app(scope, receive, with_script if is_page else send)

    return answer


def own_pages(app: ASGIApp, hosts: Collection[str]) -> ASGIApp:
    """Refuse requests of other sites' pages.

    Streamlit would ask a server outside for the address of this machine, to know whether such a page is one of its own.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        answered = app
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            names = {*hosts, urlsplit(f"//{headers.get('host', '')}").hostname}
            if origin is not None and urlsplit(origin).hostname not in names:
                answered = PlainTextResponse("This page belongs to another site.", 403)
        await answered(scope, receive, send)

    return answer


def limited_uploads(app: ASGIApp) -> ASGIApp:
    """Refuse a file if the files in a visitor's boxes, or in those of all visitors, would be too many bytes.

    Streamlit keeps them in memory, also for a while after a page was closed: those are forgotten here.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        answered, put = app, UPLOAD.search(scope["path"]) if scope["type"] == "http" else None
        if put and scope["method"] == "PUT":
            runtime = get_instance()
            stored = cast(MemoryUploadedFileManager, runtime.uploaded_file_mgr)
            sizes = {
                name: sum(len(one.data) for one in files.values()) for name, files in [*stored.file_storage.items()]
            }
            for session in [name for name in sizes if not runtime.is_active_session(name)]:
                stored.remove_session_files(session)
                del sizes[session]
            size = int(Headers(scope=scope).get("content-length", "0"))
            if sizes.get(put[1], 0) + size > OF_VISITOR or sum(sizes.values()) + size > OF_SERVER:
                answered = PlainTextResponse("These files are more bytes than this server takes at once.", 413)
        await answered(scope, receive, send)

    return answer


def old_addresses(app: ASGIApp, base: str) -> ASGIApp:
    """Redirect addresses of the time when each view had a path: /bench?run=bf16 is /?view=bench&run=bf16 now.

    Any other word becomes a view, too, which the page does not know.
    """
    root = make_url_path(base, "").rstrip("/")
    view = re.compile(rf"{re.escape(root)}/(?!_)([\w-]{{1,40}})/?")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        answered = app
        if scope["type"] == "http" and scope["method"] == "GET" and (old := view.fullmatch(scope["path"])):
            query, up = scope["query_string"].decode("latin-1"), "../" if scope["path"].endswith("/") else "./"
            # The word fits into a query as it is. Starlette quotes what does not belong into a header.
            location = f"{up}?view={old[1]}" + (f"&{query}" if query else "")
            answered = RedirectResponse(location, headers={"Cache-Control": "no-store"})
        await answered(scope, receive, send)

    return answer
