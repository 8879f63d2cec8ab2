"""The lessons as static pages, in a real Chromium that reaches nothing but the file server they lie on.

A small site is next to them, with the runs and presets of the live parts that are looked at.
"""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import app_runs
import nbformat
import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

import rlcorr
from rlcorr import PRESETS, evaluate
from rlcorr.bounds import BoundId, at_threshold
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.records import runs

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"
ADDRESS = "https://github.com/someone/somewhere"
PLOTLY = Path(sys.prefix) / "npm/node_modules/plotly.js-cartesian-dist-min/plotly-cartesian.min.js"
SITE_RUN, SITE_PRESET = "kv_fp8_e5m2", "decoupled_token_is"
"""Of the live part of lesson 03."""
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
    """Below a sub-path, as a code host serves it. The run of the site has no sketches, whose curves take long."""
    root, recorded = tmp_path_factory.mktemp("host"), tmp_path_factory.mktemp("runs")
    site = root / "some" / "project"
    pages.write(site / "lessons", address=ADDRESS)
    shutil.copytree(runs.ROOT / SITE_RUN, recorded / SITE_RUN, ignore=shutil.ignore_patterns("sketch"))
    command = [sys.executable, "app/publish.py", PLOTLY, "--out", site, "--presets", SITE_PRESET]
    environment = {**os.environ, "RLCORR_RUNS": str(recorded)}
    subprocess.run([str(part) for part in command], cwd=app_runs.PROJECT, env=environment, check=True)
    return root


def test_a_lesson_runs_elsewhere_with_pinned_packages_if_the_code_is_on_github(pages: ModuleType) -> None:
    names = [re.sub("<[^>]*>", "", link) for link in pages.take_links("00_start", ADDRESS)]
    assert names == ["Download the notebook", "Open in Colab", "Open in Binder"]
    assert len(pages.take_links("00_start", None)) == 1
    pinned = re.findall(r"rlcorr/(requirements/[\w.]+)", pages.FIRST_CELL)
    assert [path for path in pinned if (app_runs.PROJECT / path).is_file()] == pinned != []


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
        self.host = host.removesuffix("/lessons")
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
def test_a_lesson_is_drawn_whole_from_its_own_host(watched: Watched, host: str) -> None:
    """Counted in the notebook: its figures, and at least one formula per pair of double dollars."""
    notebook = nbformat.read(LESSONS / "03_cap.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    formulas = sum(cell.source.count("$$") // 2 for cell in notebook.cells if cell.cell_type == "markdown")
    page = watched.page
    page.goto(f"{host}/03_cap.html")
    assert page.locator(".figure").count() == figures > 0
    for folded in ("#more-practice", "#appendix"):
        page.locator(f"{folded} summary").first.click()
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
def test_the_decision_card_is_one_page_of_paper(watched: Watched, host: str) -> None:
    watched.page.goto(f"{host}/DECISION_CARD.html")
    printed = watched.page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    assert watched.page.evaluate("document.documentElement.scrollWidth") == 390
    assert watched.faults == []


INTO_THE_MIDDLE = "number => number.scrollIntoView({ block: 'center', behavior: 'instant' })"
"""Not under the header of a phone, and at once: the theme scrolls smoothly."""
RESTED = """() => {
  const value = new URLSearchParams(document.querySelector(".live a.go").search).get("is_upper")
  return Number(Number(value).toPrecision(6)) === Number(document.querySelector(".live .rl-slider b").innerText)
}"""


def live_numbers(page: Page) -> tuple[float, dict[str, str]]:
    """Return the bound and the headline numbers that the live part shows."""
    shown = page.locator(".live .rl-number").evaluate_all(
        "all => all.map((e) => [e.dataset.number, e.querySelector('b').innerText])"
    )
    return float(page.locator(".live .rl-slider b").inner_text()), dict(shown)


@pytest.mark.slow
def test_a_number_of_the_text_moves_the_live_picture(watched: Watched, host: str) -> None:
    """By pointer, by key, and by the dashed line of the picture. The numbers are the library's, on a phone."""
    batch = runs.read_step(runs.ROOT / "kv_fp8_e5m2", 48).batch
    config, page = PRESETS["decoupled_token_is"].config, watched.page
    page.goto(f"{host}/03_cap.html")
    page.locator(".live").scroll_into_view_if_needed()
    page.locator(".live .main-svg").nth(1).wait_for()
    number = page.get_by_role("slider", name="Largest weight").and_(page.locator(".pull"))
    expect(number).to_have_text("2")
    seen = set()
    line = page.locator(".live [data-picture=weights] .shapelayer path").last  # it has no width, so it counts as hidden
    for act in ("drag", "key", "line"):
        pulled = line if act == "line" else number
        pulled.evaluate(INTO_THE_MIDDLE)
        before = number.inner_text()
        while (box := pulled.bounding_box()) is None:  # the picture is just being drawn anew
            page.wait_for_timeout(50)
        if act == "key":
            number.press("PageUp")
        else:
            x, y = box["x"] + min(box["width"] / 2, 3), box["y"] + box["height"] / 2
            page.mouse.move(x, y)
            page.mouse.down()
            page.mouse.move(x - 60, y, steps=6)
            page.mouse.up()
        expect(number).not_to_have_text(before)
        page.wait_for_function(RESTED)
        value, shown = live_numbers(page)
        expect(number).to_have_attribute("aria-valuenow", number.inner_text())
        assert value == float(number.inner_text()) != 2
        metrics = evaluate(batch, at_threshold(config, value, BoundId(None, "upper")))[1]
        assert float(shown["Mean weight"]) == pytest.approx(metrics["rollout_corr/trained_is_mean"], rel=1e-3)
        seen.add((value, page.locator(".live .rl-answer").inner_text()))
    assert len(seen) == 3
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        of_part = {name for name, where in app_runs.unreadable(page) if "rl-" in where or "pull" in where}
        assert of_part == set(), scheme
    assert watched.faults == []


def test_every_live_part_has_its_place_and_its_numbers(pages: ModuleType) -> None:
    """Its heading is in the lesson once; the value is the preset's own number of its first bound."""
    for slug, part in pages._live.live_parts().items():
        notebook = nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4)
        pages._live.insert(notebook, part)
        (cell,) = [cell for cell in notebook.cells if 'class="live"' in cell.source]
        assert cell.source.index('class="live"') < cell.source.index(f"\n{part.before}\n"), slug
        config = PRESETS[part.preset].config
        upper = config.rollout_is_threshold if config.rollout_is else config.rollout_rs[0].upper
        assert part.value == upper, slug
        assert part.bound == ("is_upper" if config.rollout_is else f"{config.rollout_rs[0].name}_upper"), slug
        assert "{bound}" in part.text, slug
    with pytest.raises(ValueError, match="0 cells have the heading"):
        pages._live.insert(nbformat.v4.new_notebook(), part)


@pytest.mark.slow
def test_a_search_leads_to_the_lesson(watched: Watched, host: str) -> None:
    watched.page.goto(f"{host}/index.html", wait_until="networkidle")  # what leaving the page would abort has come
    watched.page.get_by_placeholder("Search").first.evaluate("box => { box.value = 'IcePop'; box.form.submit() }")
    watched.page.locator("#search-results a", has_text="08 · Rejection").first.wait_for()
    assert watched.faults == []


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
