"""The slides of the five lessons, in a real Chromium without any other host."""

import importlib
import tomllib
from pathlib import Path

import nbformat
import pytest
from app_runs import PROJECT, chromium, tab

LESSONS = PROJECT / "lessons"
INDEX = tomllib.loads((LESSONS / "index.toml").read_text(encoding="utf-8"))
# Slides that are higher than the window: half a line may be, because fonts differ.
TOO_HIGH = """() => [...document.querySelectorAll("section")].filter((s) => s.offsetHeight > 1.03 * innerHeight)
  .map((s) => s.textContent.slice(0, 60))"""
# Slides that end with the beginning of a sentence, whose formula or list is on the next one.
CUT_OFF = r"""() => [...document.querySelectorAll("section")].map((s) => s.lastElementChild)
  .filter((last) => last?.tagName === "P" && !last.querySelector(".katex-display"))
  .filter((last) => !/[.?!]\)?$/.test(last.innerText.trim()))
  .map((last) => last.textContent)"""
AT_TOP = "n => Math.abs(document.querySelectorAll('section')[n].getBoundingClientRect().top) < 2"


@pytest.mark.slow
@pytest.mark.browser
def test_every_slide_fits_keys_turn_them_and_each_picture_of_the_path_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(LESSONS)
    made = importlib.import_module("_slides")
    sections = importlib.import_module("_path").sections
    made.write(tmp_path)
    with chromium() as browser, tab(browser, viewport={"width": 1280, "height": 720}) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for slug in [slug for slug, entry in INDEX.items() if "decides" in entry]:
            page.goto((tmp_path / f"{slug[:2]}.html").as_uri())
            page.wait_for_selector(".katex", state="attached")
            assert page.evaluate(TOO_HIGH) == [], slug
            assert page.evaluate(CUT_OFF) == [], slug
            page.keyboard.press("ArrowRight")
            page.wait_for_function(AT_TOP, arg=1)
            page.keyboard.press("ArrowLeft")
            page.wait_for_function(AT_TOP, arg=0)
            lesson = nbformat.read(LESSONS / f"{slug}.ipynb", as_version=4)
            outputs = [
                output for cells in sections(lesson).values() for cell in cells for output in cell.get("outputs", [])
            ]
            pictures = sum("image/png" in output.get("data", {}) for output in outputs)
            assert page.locator("section > img").count() == pictures > 0, slug
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
