"""The lessons' static pages as the app serves them, where `make site` has built them."""

from urllib.parse import urlencode

from data import lessons
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from text.pages import PAGES

FOLDER = "/site/lessons"


async def to_view(request: Request) -> RedirectResponse:
    """The pages link to ../index.html?view=bench&run=bf16; here that is the view itself, /bench?run=bf16."""
    query = dict(request.query_params)
    view = query.pop("view", "start")
    path = view if view in PAGES and view != "start" else ""
    return RedirectResponse(f"../{path}?{urlencode(query)}")


def routes() -> list[BaseRoute]:
    """The pages may be built while the app runs, so their folder need not be there when it starts."""
    return [
        Route("/site/index.html", to_view),
        Mount(FOLDER, StaticFiles(directory=lessons.BUILT, check_dir=False)),
    ]


def address(slug: str | None) -> str:
    """Of one lesson's page, or of their list."""
    return f"{FOLDER}/{slug or 'index'}.html"
