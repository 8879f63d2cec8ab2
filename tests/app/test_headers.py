"""controls/middleware.py: pages of other sites get nothing from the app, and Streamlit is not asked about them."""

import pytest
from app_pages import committed
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

__all__ = ["committed"]  # a fixture
pytestmark = pytest.mark.usefixtures("committed")


def client(*hosts: str) -> TestClient:
    from controls.middleware import own_pages

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("open")
        await socket.close()

    routes = [Route("/", lambda request: PlainTextResponse("page")), WebSocketRoute("/stream", echo)]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(own_pages, hosts=hosts)]))


ORIGINS = [
    (None, 200), ("http://testserver", 200), ("https://testserver:8443", 200), ("https://class.example", 200),
    ("https://evil.example", 403), ("null", 403), ("", 403),
]  # fmt: skip


@pytest.mark.parametrize(("origin", "expected"), ORIGINS)
def test_only_pages_of_this_server_may_ask(origin: str | None, expected: int) -> None:
    asking, headers = client("class.example"), {} if origin is None else {"origin": origin}
    assert asking.get("/", headers=headers).status_code == expected
    if expected == 200:
        with asking.websocket_connect("/stream", headers=headers) as socket:
            assert socket.receive_text() == "open"
    else:
        with pytest.raises(WebSocketDenialResponse), asking.websocket_connect("/stream", headers=headers):
            pass
