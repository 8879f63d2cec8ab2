"""The Tokens view in a real Chromium: mouse, keyboard, address bar, a phone."""

import re

import pytest
from app_runs import settled
from playwright.sync_api import FloatRect, Locator, Page, expect
from thumbs import quiet, strip_is_there
from token_records import HOSTILE


@pytest.fixture
def url(url: str) -> str:
    return f"{url}/tokens?run=texts"


def visit(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector(".grid .token")
    settled(page)


def token(page: Page, row: int, column: int) -> Locator:
    """The token at this place, whatever the order of the responses."""
    response = page.locator(".response").filter(has_text=f"answer {row} ·")
    return response.locator(".token").nth(column)


def expect_open(page: Page, row: int, column: int) -> None:
    expect(page.get_by_text(f"Token {column} of answer {row}:")).to_be_visible()
    expect(token(page, row, column)).to_have_attribute("aria-selected", "true")
    expect(page.locator(".grid .open")).to_have_count(1)


def focus(page: Page) -> Locator:
    return page.locator(".token:focus")


def box(place: Locator) -> FloatRect:
    rectangle = place.bounding_box()
    assert rectangle is not None
    return rectangle


def test_tokens_are_opened_by_mouse_keyboard_and_their_neighbours(page: Page, url: str) -> None:
    """The text of a run is shown literally."""
    visit(page, f"{url}&token=0.0")
    the_keyboard_moves_and_opens(page)
    a_click_opens_and_writes_the_url(page)
    text_is_shown_literally(page)
    back_reload_and_another_view_keep_the_token(page)


def the_keyboard_moves_and_opens(page: Page) -> None:
    """Move from the token that the link opens: moving alone opens nothing."""
    expect_open(page, 0, 0)
    assert page.locator(".token[tabindex='0']").count() == 1
    token(page, 0, 0).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    expect(focus(page)).to_have_attribute("aria-label", re.compile(r"^,, token 1, ratio [0-9.]+$"))
    expect_open(page, 0, 0)
    page.keyboard.press("Enter")
    expect_open(page, 0, 1)
    page.wait_for_url(re.compile("token=0[.]1"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect_open(page, 0, 2)
    expect(focus(page)).to_have_attribute("aria-label", re.compile("^1, token 2, "))


def a_click_opens_and_writes_the_url(page: Page) -> None:
    token(page, 0, 3).click()
    expect_open(page, 0, 3)
    page.wait_for_url(re.compile("token=0[.]3"))
    expect(page.get_by_test_id("stCode")).to_contain_text("w = min(")


def text_is_shown_literally(page: Page) -> None:
    token(page, 2, 0).click()
    row = page.locator(".response").filter(has_text="answer 2 ·")
    assert "".join(row.locator(".token").all_inner_texts()) == "<b>7</b>⏎"
    assert page.locator(".grid b, .grid img, .grid a, .grid code, .grid script").count() == 0
    expect(page.locator(".prompt").filter(has_text=HOSTILE[-40:])).to_be_visible()
    expect(page.get_by_text("Token 0 of answer 2: “<”")).to_be_visible()


def back_reload_and_another_view_keep_the_token(page: Page) -> None:
    """Go back from token 0 of response 2 to the third of response 0, forward, and to another view and back."""
    page.wait_for_url(re.compile("token=2[.]0"))
    page.go_back()
    expect_open(page, 0, 3)
    page.go_forward()
    expect_open(page, 2, 0)
    page.reload()
    expect_open(page, 2, 0)
    page.get_by_role("link", name="Correction bench").click()
    expect(page.get_by_text("Importance weights")).to_be_visible()
    page.get_by_role("link", name="Tokens").click()
    expect_open(page, 2, 0)
    page.wait_for_url(re.compile("token=2[.]0"))


# Of every token its row, its column and what is drawn on it.
DRAWN = """all => all.map((cell) => [cell.place.row, cell.place.column, cell.classList.contains("rejected"),
  cell.classList.contains("bounded")])"""


def test_long_responses_are_scrolled_to_walked_through_and_move_with_the_thumb(page: Page, url: str) -> None:
    visit(page, f"{url.replace('texts', 'long')}&preset=decoupled_token_icepop&token=7.2")
    grid, opened = box(page.locator(".grid")), box(token(page, 7, 2))
    assert grid["y"] <= opened["y"] <= grid["y"] + grid["height"], "the box scrolls to it"
    assert page.get_by_test_id("stMain").evaluate("e => e.scrollTop") == 0, "the page does not"
    down_and_up_go_to_another_line_and_back(page)
    what_becomes_of_the_tokens_moves_with_the_thumb(page)


def down_and_up_go_to_another_line_and_back(page: Page) -> None:
    """Move within a response that is wrapped over several lines."""
    token(page, 7, 5).focus()
    start = box(focus(page))
    page.keyboard.press("ArrowDown")
    assert box(focus(page))["y"] > start["y"]
    page.keyboard.press("ArrowUp")
    assert box(focus(page))["y"] == start["y"]


def what_becomes_of_the_tokens_moves_with_the_thumb(page: Page) -> None:
    """Drag it: the tokens are drawn before it is let go as they are afterwards."""
    strip_is_there(page)
    thumb = page.locator(".rl-slider input").first
    thumb.scroll_into_view_if_needed()
    every = page.locator(".grid .token")
    before, at = every.evaluate_all(DRAWN), box(thumb)
    page.mouse.move(at["x"] + 0.8 * at["width"], at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + 0.2 * at["width"], at["y"] + at["height"] / 2, steps=6)
    quiet(page)
    held = every.evaluate_all(DRAWN)
    assert held != before
    assert "is_upper" not in page.url
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    settled(page)
    after = {tuple(token[:2]): token[2:] for token in every.evaluate_all(DRAWN)}
    same = {tuple(token[:2]): token[2:] for token in held if tuple(token[:2]) in after}
    assert len(same) > 100
    assert same == {place: after[place] for place in same}


def test_dragging_a_bound_redraws_the_text_and_keeps_the_focus(page: Page, url: str) -> None:
    visit(page, f"{url}&preset=decoupled_token_is&token=0.1")
    bounded = page.locator(".grid .bounded")
    before = bounded.count()
    slider = page.get_by_role("slider")
    slider.focus()
    slider.press("Home")
    expect(bounded).not_to_have_count(before)
    assert slider.evaluate("e => e === e.getRootNode().activeElement")
    token(page, 0, 4).focus()
    page.get_by_role("button", name="Reset to the preset's numbers").dispatch_event("click")
    expect(bounded).to_have_count(before)
    expect_open(page, 0, 1)
    assert page.locator(".token[tabindex='0']").count() == 1
    expect(focus(page)).to_have_attribute("aria-label", re.compile("token 4, "))


def test_a_phone_shows_a_token_at_its_lower_edge_once_it_is_tapped_and_closes_it(phone: Page, url: str) -> None:
    visit(phone, f"{url.replace('texts', 'long')}&preset=decoupled_k3_rs_token_tis")
    main = phone.get_by_test_id("stMain")
    assert main.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    details = phone.locator(".stColumn:has(.st-key-tokens_formulas)")
    expect(details).to_be_hidden()
    phone.locator(".grid .token").first.tap()
    phone.wait_for_url(re.compile("token="))
    text, panel = box(phone.locator(".grid")), box(details)
    assert 844 / 2 < panel["y"] < panel["y"] + panel["height"] <= 844 + 1
    assert 0 <= text["x"] < text["x"] + text["width"] <= 390
    details.get_by_role("button", name="Close").tap()
    expect(details).to_be_hidden()
    phone.wait_for_url(lambda address: "token=" not in address)
