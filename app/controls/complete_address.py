"""The address that opens a page names its run before the page is loaded."""

from urllib.parse import parse_qs

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from state import address, session
from streamlit.url_util import make_url_path
from text import pages


class CompleteAddresses:
    """ASGI middleware that redirects an address of a page without a run to the same one with the newest run.

    If the page completed it later, the browser would have an entry for each, and Back would need two presses.
    """

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app = app
        self._paths = {make_url_path(base, name).rstrip("/") for name in ("", *pages.PAGES)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].rstrip("/") in self._paths:
            query = scope["query_string"].decode("latin-1")
            if address.RUN not in parse_qs(query, keep_blank_values=True):
                named = f"?{address.RUN}={session.NEWEST}"
                answer = RedirectResponse(f"{named}&{query}" if query else named, headers={"Cache-Control": "no-store"})
        await answer(scope, receive, send)
