"""controls/middleware.py: which addresses are redirected, and that pages of other sites get nothing from the app."""

from typing import Any

import pytest
from app_pages import committed
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

__all__ = ["committed"]  # a fixture
pytestmark = pytest.mark.usefixtures("committed")

MOVED = {
    "/bench": "./?view=bench",
    "/bench/": "../?view=bench",
    "/bench?run=beta": "./?view=bench&run=beta",
    "/training?part=Study&study=a%20b": "./?view=training&part=Study&study=a%20b",
    "/bench?text=%0d%0aSet-Cookie:x": "./?view=bench&text=%0d%0aSet-Cookie:x",
    "/nonsense?run=beta": "./?view=nonsense&run=beta",
}
"""The path of a view becomes its name."""
STAY = (
    "/", "/?view=bench", "/_stcore/health", "/static/js/index.js", "/favicon.png", "/strips/ticket", "/watched/ticket",
    "/a/b",
)  # fmt: skip
ORIGINS = {
    None: 200, "http://testserver": 200, "https://testserver:8443": 200, "https://class.example": 200,
    "https://evil.example": 403, "null": 403, "": 403,
}  # fmt: skip


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("open")
    await socket.close()


def client(middleware: Any, **settings: Any) -> TestClient:
    page = Route("/{path:path}", lambda request: PlainTextResponse("page"), methods=["GET", "POST"])
    routes: list[BaseRoute] = [WebSocketRoute("/stream", echo), page]
    app = Starlette(routes=routes, middleware=[Middleware(middleware, **settings)])
    return TestClient(app, follow_redirects=False)


def test_old_addresses_of_views_are_redirected_and_nothing_else() -> None:
    from controls.middleware import old_addresses

    def location(address: str, base: str = "", method: str = "GET") -> str | None:
        return client(old_addresses, base=base).request(method, address).headers.get("location")

    assert {address: location(address) for address in MOVED} == MOVED
    assert {address: location(address) for address in STAY} == dict.fromkeys(STAY)
    assert location("/bench", method="POST") is None
    assert location("/tools/bench", base="tools") == "./?view=bench"  # a server below a path redirects its own pages
    assert location("/tools/", base="/tools/") is None
    assert location("/bench", base="tools") is None


def test_only_pages_of_this_server_may_ask() -> None:
    from controls.middleware import own_pages

    asking = client(own_pages, hosts=("class.example",))
    for origin, expected in ORIGINS.items():
        headers = {} if origin is None else {"origin": origin}
        assert asking.get("/", headers=headers).status_code == expected, origin
        if expected == 200:
            with asking.websocket_connect("/stream", headers=headers) as socket:
                assert socket.receive_text() == "open", origin
        else:
            with pytest.raises(WebSocketDenialResponse), asking.websocket_connect("/stream", headers=headers):
                pass


def test_a_server_has_one_name_in_all_its_pages_and_the_next_one_another() -> None:
    """By it components/js/no_connection.js knows that the server was restarted."""
    from controls.middleware import completes_page

    def name(of: TestClient) -> str:
        return of.get("/").text.split("data-server='")[1].split("'")[0]

    page = Route("/", lambda request: PlainTextResponse("<body></body>"))
    servers = [Starlette(routes=[page], middleware=[Middleware(completes_page, style="")]) for _ in range(2)]
    one, other = map(TestClient, servers)
    assert name(one) == name(one) != name(other) != ""
