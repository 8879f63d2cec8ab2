"""What fits into a low window, in a real Chromium: controls, sentences, numbers and pictures, none over another."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_runs import LINE, PROJECT, serve, settled, visit
from page_measures import SHARE
from playwright.sync_api import Page, ViewportSize, expect
from thumbs import hold, quiet, strip_is_there

from rlcorr.records import runs

PROJECTOR: ViewportSize = {"width": 1280, "height": 720}
PHONE: ViewportSize = {"width": 390, "height": 844}
PLACES = """(all) => all.map((one) => {
  const { left, top, bottom } = one.getBoundingClientRect()
  return [left, top, bottom]
})"""
# The buttons that save a picture, with what they cover.
COVERED = """() => [...document.querySelectorAll(".rl-save")].flatMap((buttons) => {
  const own = buttons.getBoundingClientRect()
  const others = buttons.closest(".rl-shown").querySelectorAll("h2, .rl-legend, .main-svg, .rl-caption")
  return [...others].filter((other) => {
    const { top, bottom, left, right } = other.getBoundingClientRect()
    return top < own.bottom - 1 && bottom > own.top + 1 && left < own.right && right > own.left
  }).map((other) => other.outerHTML.slice(0, 80))
})"""
OVERLAPS = """() => [...document.querySelectorAll(".rl-legend")].filter((legend) => {
  const picture = legend.parentElement.querySelector(".rl-picture")
  return legend.getBoundingClientRect().bottom > picture.getBoundingClientRect().top + 0.5 ||
    picture.querySelector(".legend") !== null
}).length"""
FILLED = """() => {
  const input = document.querySelector(".rl-slider input"), share = input.style.getPropertyValue("--rl-filled")
  return [Number(share), Number(input.value) / Number(input.max)]
}"""
CUT = """() => [...document.querySelectorAll(".rl-stamp:not([hidden])")].filter((stamp) => {
  const { left, right } = stamp.getBoundingClientRect()
  return left < 0 || right > innerWidth || stamp.scrollWidth > stamp.clientWidth
}).map((stamp) => stamp.textContent)"""


def test_slider_sentence_numbers_and_two_pictures_are_visible_together(page: Page, url: str) -> None:
    """At 1280×720, the size of a projector, the pictures with the titles of their axes. A reset moves nothing."""
    page.set_viewport_size(PROJECTOR)
    for view in ("gradient", "compare", "bench"):
        visit(page, f"{url}/{view}?run=sketched&preset=decoupled_token_is")
        sentence = "h1" if view == "compare" else ".rl-answer"
        parts = (LINE, sentence, ".rl-row", ".rl-slider", ".rl-numbers")
        boxes = [page.locator(part).first.bounding_box() for part in parts]
        tops = [box["y"] for box in boxes if box is not None]
        assert tops == sorted(tops), (view, tops)
        assert len(tops) == len(parts), view
        first, second, *_ = page.locator(".rl-row:first-child .rl-picture").evaluate_all(PLACES)
        assert first[0] < second[0], f"side by side: {view}"
        assert all(bottom <= tops[3] for *_, bottom in (first, second)), (view, first, second)
        for part in (".rl-slider", ".rl-numbers"):
            expect(page.locator(part).first).to_be_in_viewport(ratio=1)
    strip_is_there(page)
    before = ends_of_parts(page)
    assert before[1] - before[0] < 12, "nothing is between a slider and its numbers"
    hold(page, 0.3)
    quiet(page)
    filled, share = page.evaluate(FILLED)
    assert filled == pytest.approx(share), "the filled part of the track ends at the thumb"
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset to the preset's numbers")).to_be_visible()
    assert ends_of_parts(page) == before


def ends_of_parts(page: Page) -> tuple[float, float]:
    """Return where the sliders end and where the numbers begin."""
    boxes = [page.locator(part).first.bounding_box() for part in (".rl-sliders", ".rl-numbers")]
    sliders, numbers = (box for box in boxes if box is not None)
    return sliders["y"] + sliders["height"], numbers["y"]


@pytest.fixture(scope="module")
def committed() -> Iterator[str]:
    with serve(PROJECT / "runs") as url:
        yield url


@pytest.mark.parametrize("view", ["start", "mismatch", "bench", "gradient", "kl", "training"])
def test_a_projector_gives_half_of_its_window_to_pictures(page: Page, committed: str, view: str) -> None:
    page.set_viewport_size(PROJECTOR)
    page.goto(f"{committed}/?view={view}&projector=1")
    page.wait_for_selector(".rl-tiles" if view == "start" else ".rl-picture .main-svg")
    settled(page)
    page.wait_for_function(f"({SHARE})() >= 0.5")


@pytest.fixture
def study(root: Path) -> Iterator[str]:
    """A recorded study among the runs that the server shows."""
    (root / "study").mkdir()
    for name in ("index.toml", "decide_stale.parquet"):
        shutil.copy(runs.ROOT / "study" / name, root / "study")
    yield "decide_stale"
    shutil.rmtree(root / "study")


def test_a_studys_sentence_and_two_pictures_are_visible_together(page: Page, url: str, study: str) -> None:
    """On a phone no source of a picture is cut, although the names of lines take a third of the width there."""
    page.set_viewport_size(PROJECTOR)
    page.goto(f"{url}/training?part=Study&study={study}")
    page.wait_for_selector(".st-key-study_chance .main-svg")
    settled(page)
    expect(page.get_by_role("heading", name="no correction").first).to_be_in_viewport(ratio=1)
    nothing, chance = page.locator(".st-key-study_nothing, .st-key-study_chance").evaluate_all(PLACES)
    assert nothing[0] < chance[0], "side by side"
    assert all((top + bottom) / 2 < 720 for _, top, bottom in (nothing, chance)), "at least half of each"
    page.set_viewport_size(PHONE)
    page.wait_for_function(f"document.querySelector('.rl-stamp:not([hidden])') && ({CUT})().length === 0")
    assert page.evaluate("document.querySelectorAll('.rl-picture .main-svg').length") >= 5


def test_on_a_phone_the_slider_stays_in_sight(phone: Page, url: str) -> None:
    """And leaves at least half of the screen to the pictures, none of which a legend or a button covers. Every view is
    reached by the row at the top."""
    visit(phone, f"{url}/bench?run=sketched&preset=decoupled_geo_rs_token_tis")
    legend = phone.locator("[data-picture=mask] .rl-legend span")
    expect(legend).to_have_text(["kept", "above threshold", "rejected"])
    assert phone.evaluate(OVERLAPS) == 0
    expect(phone.locator("[data-picture=weights] .rl-save")).not_to_have_css("opacity", "0")
    phone.locator("[data-picture=mask]").evaluate("e => e.scrollIntoView()")
    phone.wait_for_function("document.querySelector('[data-picture=mask]').getBoundingClientRect().top < 844 / 2")
    expect(phone.locator(".rl-slider").first).to_be_in_viewport(ratio=1)
    assert phone.locator(".rl-controls").evaluate("e => e.offsetHeight") < 844 / 2
    assert phone.evaluate(COVERED) == []
    last = phone.get_by_role("link", name="Learn", exact=True)
    last.scroll_into_view_if_needed()
    expect(last).to_be_in_viewport()
    last.tap()
    phone.wait_for_url("**view=learn**")
