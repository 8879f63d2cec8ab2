"""What fits into a low window, in a real Chromium: controls, sentences, numbers and pictures, none over another."""

import pytest
from app_runs import visit
from playwright.sync_api import Page, expect
from thumbs import hold, quiet, strip_is_there

AREAS = """() => [...document.querySelectorAll(".rl-row:first-child .nsewdrag.drag")].map((area) => {
  const { top, bottom, left } = area.getBoundingClientRect()
  return [left, top, bottom]
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


@pytest.mark.parametrize("view", ["gradient", "compare", "bench"])
def test_slider_sentence_numbers_and_two_pictures_are_visible_together(page: Page, url: str, view: str) -> None:
    """At 1280×720, the size of a projector."""
    page.set_viewport_size({"width": 1280, "height": 720})
    visit(page, f"{url}/{view}?run=sketched")
    for part in (".rl-slider", ".rl-answer", ".rl-numbers"):
        box = page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 500, part
    first, second, *_ = page.evaluate(AREAS)
    assert first[0] < second[0], "side by side"
    assert all((top + bottom) / 2 < 720 for _, top, bottom in (first, second)), "at least half of each"


def test_a_legend_covers_no_picture_and_names_only_what_can_happen(page: Page, url: str) -> None:
    """Nor when a rule comes in, nor on a phone, where it takes several lines."""
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    legend = page.locator("[data-picture=mask] .rl-legend span")
    expect(legend).to_have_text(["kept", "above bound"])
    assert page.evaluate(OVERLAPS) == 0
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_geo_rs_token_tis")
    expect(legend).to_have_text(["kept", "above bound", "rejected"])
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.querySelector('.rl-picture').clientWidth < 390")
    assert page.evaluate(OVERLAPS) == 0


def test_the_filled_part_of_a_track_ends_at_the_thumb(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    strip_is_there(page)
    for _ in range(2):
        filled, share = page.evaluate(FILLED)
        assert filled == pytest.approx(share)
        hold(page, 0.3)
        quiet(page)


def test_nothing_is_between_a_slider_and_its_answer(page: Page, url: str) -> None:
    """A hole of 60 pixels once held the place of a button, which is beside the answer now and moves nothing."""
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    strip_is_there(page)

    def places() -> tuple[float, float, float]:
        boxes = [page.locator(part).first.bounding_box() for part in (".rl-sliders", ".rl-answer", ".rl-numbers")]
        sliders, answer, numbers = (box for box in boxes if box is not None)
        return sliders["y"] + sliders["height"], answer["y"], numbers["y"]

    before = places()
    assert before[1] - before[0] < 12
    hold(page, 0.3)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset to the preset's numbers")).to_be_visible()
    assert places() == before
