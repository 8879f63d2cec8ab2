"""controls/middleware.py: which addresses are redirected, and where to."""

from app_pages import committed
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

__all__ = ["committed"]  # a fixture

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
    "/", "/?view=bench", "/_stcore/health", "/static/js/index.js", "/site/lessons/index.html", "/site/",
    "/favicon.png", "/strips/ticket", "/watched/ticket", "/a/b",
)  # fmt: skip


def location(address: str, base: str = "", method: str = "GET") -> str | None:
    """Return where the answer redirects to, None without a redirect."""
    from controls.middleware import old_addresses

    page = Route("/{path:path}", lambda request: PlainTextResponse("page"), methods=["GET", "POST"])
    app = Starlette(routes=[page], middleware=[Middleware(old_addresses, base=base)])
    answer = TestClient(app, follow_redirects=False).request(method, address)
    return answer.headers.get("location")


def test_old_addresses_of_views_are_redirected_and_nothing_else(committed: None) -> None:
    assert {address: location(address) for address in MOVED} == MOVED
    assert {address: location(address) for address in STAY} == dict.fromkeys(STAY)
    assert location("/bench", method="POST") is None
    assert location("/tools/bench", base="tools") == "./?view=bench"  # a server below a path redirects its own pages
    assert location("/tools/", base="/tools/") is None
    assert location("/bench", base="tools") is None
