"""The lessons as static pages, in a real Chromium that reaches nothing but the file server they lie on."""

import importlib
import inspect
import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import app_runs
import nbformat
import pytest
from playwright.sync_api import Browser, Page, Request, Route

import rlcorr
from rlcorr.measuring.metric_definitions import METRICS

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
ADDRESS = "https://github.com/someone/somewhere"
WIDE = """() => [...document.querySelectorAll("article *")]
  .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .filter((e) => !e.closest(".math, pre, .table-wrapper"))  // these scroll by themselves
  .map((e) => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(LESSONS)
        return importlib.import_module("_pages")


@pytest.fixture(scope="module")
def folder(pages: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below a sub-path, as a code host serves it."""
    root = tmp_path_factory.mktemp("host")
    pages.write(root / "some" / "project" / "lessons", address=ADDRESS)
    return root


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/project/lessons"
        server.shutdown()


class Watched:
    """A page on a phone, and every request that failed or went elsewhere."""

    def __init__(self, browser: Browser, host: str) -> None:
        self.page: Page = browser.new_page(viewport={"width": 390, "height": 844})
        self.faults: list[str] = []
        self.host = host
        self.page.route("**/*", self._only_the_host)
        self.page.on("requestfailed", lambda request: self.faults.append(request.url))
        self.page.on("requestfinished", self._answered)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def _only_the_host(self, route: Route) -> None:
        route.continue_() if route.request.url.startswith((self.host, "data:", "blob:")) else route.abort()

    def _answered(self, request: Request) -> None:
        answer = request.response()
        if answer is None or answer.status >= 400:
            self.faults.append(request.url)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with app_runs.chromium() as launched:
        yield launched


@pytest.fixture
def watched(chromium: Browser, host: str) -> Iterator[Watched]:
    opened = Watched(chromium, host)
    yield opened
    opened.page.close()


@pytest.mark.slow
@pytest.mark.parametrize("slug", ["05_truncation", "07_rejection"])
def test_a_lesson_is_drawn_whole_from_its_own_host(watched: Watched, host: str, slug: str) -> None:
    """Counted in the notebook: its figures, and at least one formula per pair of double dollars."""
    notebook = nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    formulas = sum(cell.source.count("$$") // 2 for cell in notebook.cells if cell.cell_type == "markdown")
    page = watched.page
    page.goto(f"{host}/{slug}.html")
    assert page.locator(".figure").count() == figures > 0
    page.locator("#appendix summary").first.click()
    for number in range(figures):
        figure = page.locator(".figure").nth(number)
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg .trace").first.wait_for(state="attached")
    assert page.locator(".katex-display").count() == formulas > 0
    assert page.locator(".katex-error").count() == 0
    assert not any(mark in page.locator("article").inner_text() for mark in ("\\(", "\\[", "$$"))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(WIDE) == []
    assert watched.faults == []


@pytest.mark.slow
def test_paper_and_a_browser_without_scripts_get_the_still_pictures(chromium: Browser, host: str) -> None:
    with chromium.new_context(java_script_enabled=False) as plain:
        page = plain.new_page()
        page.goto(f"{host}/05_truncation.html")
        pictures = page.locator(".figure img")
        assert pictures.count() > 0
        assert all(picture.is_visible() for picture in pictures.all())
    page = chromium.new_page()
    page.goto(f"{host}/05_truncation.html")
    page.locator(".figure").first.scroll_into_view_if_needed()
    page.locator(".figure.drawn").first.wait_for()
    assert page.locator(".figure.drawn img").first.is_hidden()
    page.emulate_media(media="print")
    assert page.locator(".figure.drawn img").first.is_visible()
    page.close()


@pytest.mark.slow
def test_a_search_leads_to_the_lesson(watched: Watched, host: str) -> None:
    watched.page.goto(f"{host}/index.html", wait_until="networkidle")  # what leaving the page would abort has come
    watched.page.get_by_placeholder("Search").first.evaluate("box => { box.value = 'IcePop'; box.form.submit() }")
    watched.page.locator("#search-results a", has_text="07 · Rejection").first.wait_for()
    assert watched.faults == []


@pytest.mark.slow
def test_links_lead_to_the_playground_beside_the_lessons(folder: Path) -> None:
    """The first link of lesson 05 in the app: localhost:8501/gradient?run=stale_head&step=40&preset=…"""
    made = (folder / "some/project/lessons/05_truncation.html").read_text(encoding="utf-8")
    place = "../index.html?view=gradient&amp;run=stale_head&amp;step=40&amp;preset=decoupled_seq_is"
    assert f'href="{place}"' in made
    assert "localhost" not in made
    assert "/github/someone/somewhere/blob/gh-pages/lessons/notebooks/05_truncation.ipynb" in made


@pytest.mark.slow
def test_all_of_it_is_small(folder: Path) -> None:
    """15 MB are the whole site's, playground included."""
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 10e6


def test_a_copy_prepares_colab_alone(pages: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    """Outside of Colab the first cell does nothing; without a public address there is none."""
    notebook = nbformat.read(LESSONS / "05_truncation.ipynb", as_version=4)
    number = len(notebook.cells)
    assert len(pages.copy(notebook, None).cells) == number
    first = pages.copy(notebook, ADDRESS).cells[0]
    nbformat.validate(json.loads(nbformat.writes(notebook)))
    assert ADDRESS in first.source
    before = Path.cwd()
    exec(compile(first.source, "first cell", "exec"), {})
    assert Path.cwd() == before
    assert capfd.readouterr().out == ""


def test_pages_for_a_workshop_hide_the_solutions(pages: ModuleType) -> None:
    committed = nbformat.read(LESSONS / "05_truncation.ipynb", as_version=4)
    shown = pages.without_solutions(nbformat.read(LESSONS / "05_truncation.ipynb", as_version=4))
    hidden = [cell.source for cell in committed.cells if "solution" in cell.metadata.get("tags", [])]
    assert len(hidden) == 3  # one per exercise
    assert not {cell.source for cell in shown.cells} & set(hidden)
    assert len(shown.cells) == len(committed.cells) - 3


def test_an_unsolved_exercise_says_where_it_can_be_solved(pages: ModuleType, tmp_path: Path) -> None:
    """With and without solutions, in every lesson; its task stays as it is."""
    for path in LESSONS.glob("[0-9][0-9]_*.ipynb"):
        for edition in (lambda notebook: notebook, pages.without_solutions):
            committed = nbformat.read(path, as_version=4)
            before = [cell.source for cell in committed.cells if "raise NotImplementedError" in cell.source]
            made = pages.page(edition(committed), path.stem, ADDRESS, tmp_path)
            outputs = json.dumps([cell.outputs for cell in made.cells if cell.cell_type == "code"])
            assert "Not yet" not in outputs
            sentences = outputs.count("This page cannot run code.")
            assert sentences == outputs.count("/blob/gh-pages/lessons/notebooks/")
            assert sentences == path.read_text(encoding="utf-8").count("Not yet: ") > 0
            assert before == [cell.source for cell in made.cells if "raise NotImplementedError" in cell.source]


def test_the_reference_has_every_function_preset_and_metric(folder: Path) -> None:
    lessons = folder / "some" / "project" / "lessons"
    functions = {name for name in rlcorr.__all__ if inspect.isroutine(getattr(rlcorr, name)) or name.endswith("Config")}
    # Other systems' translations are described in their README.
    functions -= {name for name in functions if name.startswith(("from_", "to_"))} | {"export", "preset"}
    for page, names in {"reference": functions, "presets": rlcorr.PRESETS, "metrics": METRICS}.items():
        text = (lessons / f"{page}.html").read_text(encoding="utf-8")
        headings = set(re.findall(r'<h[23]><code[^>]*><span class="pre">([^<]+)</span>', text))
        assert set(names) <= headings, page
