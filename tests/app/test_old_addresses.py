"""controls/middleware.py: which addresses are redirected, and where to."""

import pytest
from app_pages import committed
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

__all__ = ["committed"]  # a fixture
pytestmark = pytest.mark.usefixtures("committed")


def location(address: str, base: str = "", method: str = "GET") -> str | None:
    """Return where the answer redirects to, None without a redirect."""
    from controls.middleware import old_addresses

    page = Route("/{path:path}", lambda request: PlainTextResponse("page"), methods=["GET", "POST"])
    app = Starlette(routes=[page], middleware=[Middleware(old_addresses, base=base)])
    answer = TestClient(app, follow_redirects=False).request(method, address)
    return answer.headers.get("location")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/bench", "./?view=bench"),
        ("/bench/", "../?view=bench"),
        ("/bench?run=beta", "./?view=bench&run=beta"),
        ("/training?part=Study&study=a%20b", "./?view=training&part=Study&study=a%20b"),
        ("/bench?text=%0d%0aSet-Cookie:x", "./?view=bench&text=%0d%0aSet-Cookie:x"),
        ("/nonsense?run=beta", "./?view=nonsense&run=beta"),
    ],
)
def test_the_path_of_a_view_becomes_its_name(address: str, expected: str) -> None:
    assert location(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "/", "/?view=bench", "/_stcore/health", "/static/js/index.js", "/site/lessons/index.html", "/site/",
        "/favicon.png", "/strips/ticket", "/watched/ticket", "/a/b",
    ],
)  # fmt: skip
def test_everything_else_stays_as_it_is(address: str) -> None:
    assert location(address) is None


def test_only_a_page_that_is_read_is_redirected() -> None:
    assert location("/bench", method="POST") is None


def test_a_server_below_a_path_redirects_its_own_pages_only() -> None:
    assert location("/tools/bench", base="tools") == "./?view=bench"
    assert location("/tools/", base="/tools/") is None
    assert location("/bench", base="tools") is None
