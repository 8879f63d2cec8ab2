"""The Compare view in a real Chromium: address bar, Back, dragging, keyboard, a phone.

Each test is one person's visit: what can be seen on one page is checked on it, as loading it costs the most.
"""

import re

import pytest
from app_runs import fits_a_phone, settled, unfold, visit
from playwright.sync_api import Locator, Page, expect
from thumbs import hold, quiet, strip_is_there


@pytest.fixture
def url(url: str) -> str:
    return f"{url}/compare"


def metric(page: Page, label: str) -> Locator:
    return page.locator(f"[data-number='{label}'] b")


def slider(page: Page, side: str) -> Locator:
    """The live one of A or B."""
    return page.get_by_role(
        "slider", name=re.compile({"A": r"^\s*(A: )?Largest weight", "B": "B: Largest weight"}[side])
    )


def value(page: Page, side: str, expected: str) -> None:
    expect(slider(page, side)).to_have_attribute("aria-valuetext", expected)


TWO = "preset=decoupled_token_icepop&preset_b=decoupled_seq_is&is_upper=3&b.is_upper=7"


def a_held_bound_asks_nothing(page: Page) -> None:
    """Drag A's bound: the table of the metrics, the numbers and the cells are looked up."""
    strip_is_there(page)
    before, address, asked = page.locator(".rl-pairs").first.inner_text(), page.url, []
    page.on("request", lambda request: asked.append(request.url))
    hold(page, 0.2)
    quiet(page)
    assert page.locator(".rl-pairs").first.inner_text() != before
    assert asked == []
    page.mouse.up()
    page.wait_for_url(lambda now: re.search("[?&]is_upper=", now) is not None and now != address)
    settled(page)


def test_two_configurations_are_in_the_link_and_each_follows_its_own_bound(page: Page, url: str) -> None:
    """B's bounds leave the link with their controls, and come back with them."""
    visit(page, f"{url}?{TWO}")
    page.reload()
    page.wait_for_selector(".rl-picture .main-svg")
    settled(page)
    value(page, "A", "3")
    value(page, "B", "7")
    expect(page.get_by_text("a weight above 7 becomes 7")).to_be_visible()
    fits_a_phone(page)

    page.get_by_role("link", name="Correction bench").click()
    expect(page.get_by_text("Cost of the threshold")).to_be_visible()
    settled(page)
    assert "b.is_upper" not in page.url, "the bench has no B"
    page.get_by_role("link", name="Compare").click()
    page.wait_for_url(lambda address: "b.is_upper=7" in address and "preset_b=decoupled_seq_is" in address)
    value(page, "A", "3")
    settled(page)

    both_are_swapped(page)
    b_moves_while_the_mouse_is_down(page)
    page.go_back()
    value(page, "B", "3")
    settled(page)
    a_held_bound_asks_nothing(page)
    page.get_by_role("button", name="Reset B to the preset's numbers").click()
    page.wait_for_url(lambda address: "b.is_upper" not in address)
    value(page, "B", "5")


def b_moves_while_the_mouse_is_down(page: Page) -> None:
    """Drag it; the link has it once it is let go, and A's bound stays."""
    before = metric(page, "Only A").inner_text()
    slider(page, "B").scroll_into_view_if_needed()
    box = slider(page, "B").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] - 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + box["height"] - 8, steps=5)
    expect(metric(page, "Only A")).not_to_have_text(before)
    assert "b.is_upper=3" in page.url, "the mouse is down"
    page.mouse.up()
    page.wait_for_url(re.compile(r"b\.is_upper=1\.\d+"))
    value(page, "A", "7")
    settled(page)


def both_are_swapped(page: Page) -> None:
    only = {name: metric(page, f"Only {name}").inner_text() for name in "AB"}
    unfold(page)
    swap = page.get_by_role("button", name="Swap A and B")
    swap.focus()
    swap.press("Enter")
    page.wait_for_url(lambda address: "b.is_upper=3" in address and "preset_b=decoupled_token_icepop" in address)
    assert re.search(r"[?&]preset=decoupled_seq_is", page.url)
    expect(metric(page, "Only A")).to_have_text(only["B"])
    expect(metric(page, "Only B")).to_have_text(only["A"])
    value(page, "A", "7")
    value(page, "B", "3")
    settled(page)
