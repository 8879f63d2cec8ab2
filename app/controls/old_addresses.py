"""Addresses of the time when each view had a path: /bench?run=bf16 is /?view=bench&run=bf16 now."""

import re

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit.url_util import make_url_path


class OldAddresses:
    """ASGI middleware that redirects them. Any other word becomes a view, too, which the page does not know."""

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app = app
        root = make_url_path(base, "").rstrip("/")
        self._view = re.compile(rf"{re.escape(root)}/(?!_|site/?$)([\w-]{{1,40}})/?")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and scope["method"] == "GET" and (old := self._view.fullmatch(scope["path"])):
            query, up = scope["query_string"].decode("latin-1"), "../" if scope["path"].endswith("/") else "./"
            # The word fits into a query as it is. Starlette quotes what does not belong into a header.
            location = f"{up}?view={old[1]}" + (f"&{query}" if query else "")
            answer = RedirectResponse(location, headers={"Cache-Control": "no-store"})
        await answer(scope, receive, send)
