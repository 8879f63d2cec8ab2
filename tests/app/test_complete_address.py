"""controls/complete_address.py: which addresses are redirected, and where to."""

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
    from controls.complete_address import CompleteAddresses

    page = Route("/{path:path}", lambda request: PlainTextResponse("page"), methods=["GET", "POST"])
    app = Starlette(routes=[page], middleware=[Middleware(CompleteAddresses, base=base)])
    answer = TestClient(app, follow_redirects=False).request(method, address)
    return answer.headers.get("location")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/", "?run=newest"),
        ("/bench", "?run=newest"),
        ("/bench/", "?run=newest"),
        ("/training?part=Study&study=a%20b", "?run=newest&part=Study&study=a%20b"),
        ("/bench?rerun=1", "?run=newest&rerun=1"),
        ("/bench?text=%0d%0aSet-Cookie:x", "?run=newest&text=%0d%0aSet-Cookie:x"),
    ],
)
def test_a_page_without_a_run_gets_the_newest_and_keeps_its_query(address: str, expected: str) -> None:
    assert location(address) == expected


@pytest.mark.parametrize(
    "address", ["/bench?run=beta", "/bench?run=", "/?hide=menu&run=beta", "/_stcore/health", "/static/js/index.js"]
)
def test_everything_else_stays_as_it_is(address: str) -> None:
    assert location(address) is None


def test_only_a_page_that_is_read_is_redirected() -> None:
    assert location("/bench", method="POST") is None


def test_a_server_below_a_path_completes_its_own_pages_only() -> None:
    assert location("/tools/bench", base="tools") == "?run=newest"
    assert location("/tools", base="/tools/") == "?run=newest"
    assert location("/bench", base="tools") is None
