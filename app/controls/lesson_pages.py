"""The lessons' static pages in the app, if `make site` has built them."""

from data import lessons
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

SITE = "/site"


async def to_view(request: Request) -> RedirectResponse:
    """Redirect a link of the pages, such as ../index.html?view=bench&run=bf16, to the view: /?view=bench&run=bf16."""
    return RedirectResponse(f"../?{request.url.query}")


async def built_site(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a file of the built site, or say how to build it: it may be missing, and be built while the app runs.

    The site around the lessons has the script and the data of the live pictures between their paragraphs.
    """
    if lessons.BUILT.is_dir():
        await StaticFiles(directory=lessons.BUILT.parent)(scope, receive, send)
    else:
        await PlainTextResponse("The lessons are not built yet: make site builds them.", 404)(scope, receive, send)


ROUTES = [Route(f"{SITE}/index.html", to_view), Mount(SITE, built_site)]


def address(slug: str | None) -> str:
    """Return the address of one lesson's page; of their list if `slug` is None."""
    return f"{SITE}/lessons/{slug or 'index'}.html"
