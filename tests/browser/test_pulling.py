"""A bound that is pulled by its line in a picture, typed, or moves by itself, in a real Chromium."""

import pytest
from app_runs import settled, visit
from playwright.sync_api import Page, expect
from thumbs import another_preset, quiet, strip_is_there, texts


def line_at(page: Page, picture: str) -> tuple[float, float]:
    """Client pixels of the last upright line of a picture: where its middle is."""
    box = page.locator(f"[data-picture={picture}] .shapelayer path").last.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


ZOOM = "(key) => document.querySelector(`[data-picture=${key}] .rl-picture`)._fullLayout.xaxis.range"


def test_a_line_of_a_picture_is_pulled_and_any_number_is_typed(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    is_pulled(page, "weights", "is_upper")
    beside_a_line_plotly_zooms(page)
    another_preset(page, "decoupled_k3_rs")
    is_pulled(page, "statistic", "seq_mean_k3_upper")
    another_preset(page, "decoupled_geo_rs_token_tis")
    any_number_can_be_typed(page)


def is_pulled(page: Page, picture: str, key: str) -> None:
    """Pull a line: while it is held it stays under the pointer, thumb and numbers follow, and nothing is asked; then
    the address has the bound. Plotly, which would zoom there, does not."""
    strip_is_there(page)
    before, address, asked = texts(page), page.url, []
    shown = page.evaluate(ZOOM, picture)
    page.locator(f"[data-picture={picture}]").scroll_into_view_if_needed()
    x, y = line_at(page, picture)
    page.mouse.move(x, y)
    page.on("request", lambda request: asked.append(request.url))
    page.mouse.down()
    page.mouse.move(x - 60, y + 3, steps=6)
    quiet(page)
    assert line_at(page, picture)[0] == pytest.approx(x - 60, abs=4), picture
    assert texts(page) != before, picture
    assert asked == [], picture
    pulled = float(page.locator(".rl-typed").first.input_value())
    page.mouse.up()
    page.wait_for_url(lambda now: f"{key}=" in now and now != address)
    settled(page)
    assert float(page.url.split(f"{key}=")[1].split("&")[0]) == pytest.approx(pulled, rel=1e-5), picture
    assert page.evaluate(ZOOM, picture) == shown, picture


def beside_a_line_plotly_zooms(page: Page) -> None:
    """Drag there, as ever: the bound stays."""
    strip_is_there(page)
    address = page.url
    page.locator("[data-picture=weights]").scroll_into_view_if_needed()
    x, y = line_at(page, "weights")
    page.mouse.move(x - 120, y)
    page.mouse.down()
    page.mouse.move(x - 40, y, steps=5)
    page.mouse.up()
    page.wait_for_function("!document.querySelector('[data-picture=weights] .rl-picture')._fullLayout.xaxis.autorange")
    assert page.url == address


def any_number_can_be_typed(page: Page) -> None:
    """Type one that is no place of the slider; what lies outside its range is refused and taken back."""
    typed = page.get_by_role("textbox", name="Smallest mean ratio (seq_mean_k1)")
    typed.fill("0.98765")
    typed.press("Enter")
    page.wait_for_url("**seq_mean_k1_lower=0.98765**")
    settled(page)
    assert typed.input_value() == "0.98765"
    slider = page.locator(".rl-slider", has=typed)
    for wrong, said in (("7", "7 is out of range."), ("much", "“much” is not a number."), ("", "")):
        typed.fill(wrong)
        typed.press("Enter")
        expect(slider.get_by_role("alert")).to_have_text(f"{said} Type a number from 0.49975 to 1.".strip())
        typed.blur()
        assert typed.input_value() == "0.98765"
        expect(slider.get_by_role("alert")).to_be_visible()  # until something else is typed
    typed.fill("0.9")
    expect(slider.get_by_role("alert")).to_be_hidden()
