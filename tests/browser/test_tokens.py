"""The Tokens view in a real Chromium: mouse, keyboard, address bar, a phone."""

import re

import pytest
from app_runs import settled
from playwright.sync_api import FloatRect, Locator, Page, WebSocketRoute, expect
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
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
    response = page.locator(".response").filter(has_text=f"response {row} ·")
    return response.locator(".token").nth(column)


def expect_open(page: Page, row: int, column: int) -> None:
    expect(page.get_by_text(f"Token {column} of response {row}:")).to_be_visible()
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
    neighbours_are_opened(page)
    text_is_shown_literally(page)


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


def neighbours_are_opened(page: Page) -> None:
    """Go from the first token of a response to its last."""
    token(page, 3, 0).click()
    expect_open(page, 3, 0)
    expect(page.get_by_role("button", name="Previous token")).to_be_disabled()
    page.get_by_role("button", name="Next token").click()
    expect_open(page, 3, 1)
    page.wait_for_url(re.compile("token=3[.]1"))
    expect(page.get_by_role("button", name="Next token")).to_be_disabled()


def text_is_shown_literally(page: Page) -> None:
    token(page, 2, 0).click()
    row = page.locator(".response").filter(has_text="response 2 ·")
    assert "".join(row.locator(".token").all_inner_texts()) == "<b>7</b>⏎"
    assert page.locator(".grid b, .grid img, .grid a, .grid code, .grid script").count() == 0
    expect(page.locator(".prompt").filter(has_text=HOSTILE[-40:])).to_be_visible()
    expect(page.get_by_text("Token 0 of response 2: “<”")).to_be_visible()


# Of every token its row, its column and what is drawn on it.
DRAWN = """all => all.map((cell) => [cell.place.row, cell.place.column, cell.classList.contains("rejected"),
  cell.classList.contains("bounded")])"""


def test_long_responses_are_scrolled_to_walked_through_and_move_with_the_thumb(page: Page, url: str) -> None:
    visit(page, f"{url.replace('texts', 'long')}&preset=decoupled_token_icepop&token=7.2")
    a_token_far_down_is_scrolled_to(page)
    up_and_down_go_to_the_nearest_token(page)
    what_becomes_of_the_tokens_moves_with_the_thumb(page)


def a_token_far_down_is_scrolled_to(page: Page) -> None:
    """Look where the link's token is: the box scrolls, the page does not."""
    grid, opened = box(page.locator(".grid")), box(token(page, 7, 2))
    assert grid["y"] <= opened["y"] <= grid["y"] + grid["height"]
    assert page.get_by_test_id("stMain").evaluate("e => e.scrollTop") == 0
    last = page.locator(".response").last
    last.locator(".token").first.click()
    name = last.locator(".heading").inner_text().split(" ·")[0]
    expect(page.get_by_text(f"Token 0 of {name}:")).to_be_visible()
    settled(page)


def up_and_down_go_to_the_nearest_token(page: Page) -> None:
    """Go to the next line of a response that is wrapped over several lines, and back."""
    token(page, 7, 5).focus()
    start = box(focus(page))
    page.keyboard.press("ArrowDown")
    below = box(focus(page))
    assert below["y"] > start["y"]
    every = page.locator(".grid .token").evaluate_all("all => all.map((e) => e.getBoundingClientRect().toJSON())")
    line = [at for at in every if at["y"] == below["y"]]
    assert len(line) > 5
    assert abs(centre(below) - centre(start)) == min(abs(centre(at) - centre(start)) for at in line)
    page.keyboard.press("ArrowUp")
    assert box(focus(page))["y"] == start["y"]


def what_becomes_of_the_tokens_moves_with_the_thumb(page: Page) -> None:
    """Drag it: the tokens are drawn before it is let go as they are afterwards."""
    page.locator(".rl-slider").first.evaluate(
        "async (slider) => { while (!slider.isReady()) await new Promise(requestAnimationFrame) }"
    )
    thumb = page.locator(".rl-slider input").first
    thumb.scroll_into_view_if_needed()
    every = page.locator(".grid .token")
    before, at = every.evaluate_all(DRAWN), box(thumb)
    page.mouse.move(at["x"] + 0.8 * at["width"], at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + 0.2 * at["width"], at["y"] + at["height"] / 2, steps=6)
    page.locator(".rl-slider").first.evaluate("""async (slider) => {
      const frame = () => new Promise(requestAnimationFrame)
      do await frame()
      while (!slider.isQuiet())
    }""")
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


def centre(at: FloatRect) -> float:
    return at["x"] + at["width"] / 2


def test_the_back_button_returns_to_the_token_before(page: Page, url: str) -> None:
    visit(page, url)
    furthest = page.locator(".token.open").get_attribute("aria-label")
    for column in (1, 2):
        token(page, 1, column).click()
        expect_open(page, 1, column)
        page.wait_for_url(re.compile(f"token=1[.]{column}"))
    page.go_back()
    expect_open(page, 1, 1)
    page.go_back()
    expect(page.locator(".token.open")).to_have_attribute("aria-label", furthest or "")
    page.go_forward()
    expect_open(page, 1, 1)


def test_a_reload_and_another_view_keep_the_token(page: Page, url: str) -> None:
    visit(page, url)
    token(page, 2, 4).click()
    page.wait_for_url(re.compile("token=2[.]4"))
    page.reload()
    expect_open(page, 2, 4)
    page.get_by_role("link", name="Correction bench").click()
    expect(page.get_by_text("Importance weights")).to_be_visible()
    page.get_by_role("link", name="Tokens").click()
    expect_open(page, 2, 4)
    page.wait_for_url(re.compile("token=2[.]4"))


def overtaken(page: Page) -> None:
    """As it may happen on a busy machine: before the page is told that a fragment has ended, the next one, which looks
    for new runs every two seconds, has begun. Streamlit then says that it ended early, and removes nothing."""
    ended = ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY

    def pass_on(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def change(raw: str | bytes) -> None:
            assert isinstance(raw, bytes)
            message = ForwardMsg.FromString(raw)
            if message.WhichOneof("type") == "script_finished" and message.script_finished == ended:
                message.script_finished = ForwardMsg.FINISHED_EARLY_FOR_RERUN
                raw = message.SerializeToString()
            browser.send(raw)

        server.on_message(change)

    page.route_web_socket(re.compile("_stcore/stream"), pass_on)


def test_a_wrong_token_is_named_until_another_is_opened(page: Page, url: str) -> None:
    overtaken(page)
    visit(page, f"{url}&token=9.99")
    said = page.get_by_text("token=9.99 is not in this step: it has 4 responses, all counted from 0.")
    expect(said).to_be_visible()
    token(page, 1, 0).click()
    expect_open(page, 1, 0)
    expect(said).to_have_count(0)


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
    for run in ("texts", "long"):
        phone.emulate_media(color_scheme="dark" if run == "texts" else "light")
        visit(phone, f"{url.replace('texts', run)}&preset=decoupled_k3_rs_token_tis")
        main = phone.get_by_test_id("stMain")
        assert main.evaluate("e => e.scrollWidth <= e.clientWidth"), run
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), run
        details = phone.locator(".stColumn:has(.st-key-tokens_formulas)")
        expect(details).to_be_hidden()
        token(phone, *(1, 2) if run == "texts" else shown(phone)).tap()
        phone.wait_for_url(re.compile("token="))
        text, panel = box(phone.locator(".grid")), box(details)
        assert 844 / 2 < panel["y"] < panel["y"] + panel["height"] <= 844 + 1, run
        assert 0 <= text["x"] < text["x"] + text["width"] <= 390, run
        details.get_by_role("button", name="Close").tap()
        expect(details).to_be_hidden()
        phone.wait_for_url(lambda address: "token=" not in address)


def shown(page: Page) -> tuple[int, int]:
    """The first token of the first response on the page."""
    return int(page.locator(".heading").first.inner_text().split()[1]), 0
