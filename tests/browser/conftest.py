"""One Chromium, and one server over one folder of runs, for all tests of this folder.

They live until a test of another folder follows: while Chromium runs, nothing else of the process can use asyncio.
"""

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import app_runs
import pytest
from browser_runs import make_runs
from playwright.sync_api import Browser, BrowserContext, Page

SHARED = ExitStack()


@functools.cache
def chromium() -> Browser:
    """The system's."""
    return SHARED.enter_context(app_runs.chromium("--process-per-site"))


@functools.cache
def context(touch: bool = False) -> BrowserContext:
    """Return a context whose pages share one process, which its empty page keeps: a new process would read and compile
    all of Streamlit and plotly anew, twice as much work as a page itself."""
    options: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}
    if touch:
        options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    opened = SHARED.enter_context(chromium().new_context(**options))
    keeper = opened.new_page()
    keeper.route("**/*", lambda route: route.fulfill(body=""))
    keeper.goto("http://127.0.0.1/")
    return opened


@functools.cache
def folder() -> Path:
    """Return the folder of the runs that the server shows."""
    made = Path(SHARED.enter_context(tempfile.TemporaryDirectory()))
    make_runs(made)
    return made


@functools.cache
def server() -> str:
    return SHARED.enter_context(app_runs.serve(folder()))


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        for made in (chromium, context, folder, server):
            made.cache_clear()
        SHARED.close()


ERRORS: list[str] = []
"""What pages of the running test did not catch, did not get, and complained of."""
STATE = """() => {
  const app = document.querySelector("[data-testid=stApp]"), all = (css) => [...document.querySelectorAll(css)]
  return {
    script: app?.dataset.testScriptState, connection: app?.dataset.testConnectionState,
    text: document.body.innerText.slice(0, 500), isVisible: document.visibilityState,
    sliders: all(".rl-slider").map((s) => [s.dataset.slider, s.place(), s.isQuiet(), s.isReady(), s.isAhead()]),
    sketched: all(".rl-picture").map((picture) => picture.sketched),
  }
}"""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Say of a failed test what its page showed: on a loaded machine it may not fail again."""
    report = (yield).get_result()
    fixtures = getattr(item, "funcargs", {})
    page = fixtures.get("page")
    if report.when == "call" and report.failed and page is not None and not page.is_closed():
        report.sections.append(("page", f"{page.url}\n{page.evaluate(STATE)}\n{ERRORS}"))
        log = folder() / "server.log"  # the site has none
        if "url" in fixtures and log.exists():
            report.sections.append(("server", log.read_text(encoding="utf-8")[-2000:]))


def empty_page(opened: BrowserContext) -> Iterator[Page]:
    """Yield an empty page, without the cookies and the permissions of the one before."""
    page = opened.new_page()
    page.set_default_timeout(app_runs.PATIENCE)
    page.on("pageerror", lambda error: ERRORS.append(f"{error.message} {error.stack}"))
    page.on("requestfailed", lambda request: ERRORS.append(f"{request.url} {request.failure}"))
    page.on("console", lambda message: ERRORS.append(message.text) if message.type == "error" else None)
    yield page
    page.close()
    ERRORS.clear()
    opened.clear_cookies()
    opened.clear_permissions()


@pytest.fixture
def page() -> Iterator[Page]:
    yield from empty_page(context())


@pytest.fixture
def another_page() -> Iterator[Page]:
    """What somebody else has open at the same time."""
    yield from empty_page(context())


@pytest.fixture
def phone() -> Iterator[Page]:
    """A small screen that is touched."""
    yield from empty_page(context(touch=True))


@pytest.fixture
def root() -> Path:
    """The folder of the runs that the server shows."""
    return folder()


@pytest.fixture
def url() -> str:
    return server()


@pytest.fixture
def local(root: Path) -> Iterator[Path]:
    """The folder of the runs made here: what a test adds there is gone after it."""
    yield root / "local"
    shutil.rmtree(root / "local", ignore_errors=True)
