"""The Lab as a reader uses it, in a real Chromium: it trains in front of him, and every setting is in the address."""

from typing import Any

import pytest
from app_runs import settled, unreadable
from playwright.sync_api import Page, expect

TRAINED = """() => {
  const title = document.querySelector(".rl-lab-title"), lab = document.querySelector(".rl-lab")?.parentElement.lab
  return title?.textContent.includes("ends at") && JSON.stringify(lab.settings) === JSON.stringify(lab.data.settings)
}"""
LINE = """() => {  // its middle; each result of the sweep draws it anew
  const box = [...document.querySelectorAll(".rl-lab-over_threshold .shapelayer path")].at(-1)?.getBoundingClientRect()
  return box?.height && [box.x + box.width / 2, box.y + box.height / 2]
}"""
STEPS = "&steps=40"  # few, so that two cores are done soon


def opened(page: Page, address: str) -> str:
    page.goto(address)
    return title(page)


def title(page: Page) -> str:
    """The outcome, when all seeds of both arms are trained with the settings that the server knows."""
    page.wait_for_selector(".rl-lab-title")
    page.wait_for_function(TRAINED)
    settled(page)
    return page.locator(".rl-lab-title").inner_text()


def settings(page: Page) -> dict[str, Any]:
    return page.evaluate("document.querySelector('.rl-lab').parentElement.lab.settings")


def press(page: Page, key: str, name: str, times: int = 1) -> None:
    handle = page.locator(f"[data-slider={key}] input[type=range]")
    handle.focus()
    for _ in range(times):
        page.keyboard.press(name)


def test_a_reader_plays_moves_every_handle_and_goes_back(page: Page, url: str) -> None:
    first = opened(page, f"{url}/?view=lab{STEPS}")
    assert "with a cap of 2 on each ratio" in first
    shown = [page.url]
    for key, name in (
        ("lag", "ArrowLeft"), ("learning_rate", "ArrowRight"), ("threshold", "ArrowLeft"), ("noise", "ArrowRight"),
        ("length", "ArrowLeft"), ("top_p", "ArrowLeft"), ("steps", "ArrowRight"),
    ):  # fmt: skip
        press(page, key, name)
        page.wait_for_url(lambda now: now != shown[-1])
        title(page)
        assert f"{key}={settings(page)[key]:g}" in page.url, key
        shown.append(page.url)
    for label, key, value in (
        ("Weights", "ratio", "sequence"), ("Outside", "bound", "mask"), ("KL penalty", "penalty", "k2"),
        ("Optimizer", "optimizer", "sgd"),
    ):  # fmt: skip
        page.get_by_role("combobox", name=label).select_option(value)
        page.wait_for_url(f"**{key}={value}**")
        title(page)
        shown.append(page.url)
    assert settings(page)["learning_rate"] == 5  # SGD's usual one
    last = title(page)
    page.reload()
    assert title(page) == last
    for before in reversed(shown[-4:-1]):
        page.go_back()
        page.wait_for_url(before)
        title(page)
    assert settings(page)["ratio"] == "sequence"
    page.go_forward()
    page.wait_for_url(shown[-3])
    title(page)


def test_playing_pausing_stepping_and_other_seeds(page: Page, url: str) -> None:
    first = opened(page, f"{url}/?view=lab&steps=400&ratio=token")
    name = page.locator(".rl-lab-title")
    page.get_by_role("button", name="Play").click()
    expect(name).to_contain_text("of 400")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_role("button", name="To the start").click()
    expect(name).to_have_text("Update 0 of 400.")
    page.get_by_role("button", name="One update").click()
    expect(name).to_have_text("Update 1 of 400.")
    page.get_by_role("button", name="Play").click()
    expect(name).to_contain_text("ends at")
    assert title(page) == first
    page.get_by_role("button", name="Other seeds").click()
    page.wait_for_url("**seed=8**")
    assert title(page) != first


def test_the_line_over_the_threshold_is_dragged_and_the_map_is_clicked(page: Page, url: str) -> None:
    opened(page, f"{url}/?view=lab{STEPS}")
    page.locator(".rl-lab-over_threshold").scroll_into_view_if_needed()
    x, y = page.wait_for_function(LINE).json_value()
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y, steps=5)
    page.wait_for_function("document.querySelector('.rl-lab').parentElement.lab.settings.threshold < 1")  # not let go
    page.wait_for_function(f"({LINE})()?.[0] < {x - 30}")
    page.mouse.up()
    page.wait_for_url("**threshold=0.**")
    title(page)
    click_the_map(page)
    title(page)


def click_the_map(page: Page) -> None:
    page.locator(".rl-lab-gains").scroll_into_view_if_needed()
    area = page.locator(".rl-lab-gains .nsewdrag").bounding_box()
    assert area is not None
    page.mouse.click(area["x"] + 0.3 * area["width"], area["y"] + 0.5 * area["height"])  # second column, middle row
    page.wait_for_url(lambda now: "lag=8" in now and "learning_rate=0.01" in now)
    thumbs = page.locator("[data-slider=lag] input[type=range], [data-slider=learning_rate] input[type=range]")
    assert [thumb.get_attribute("aria-valuetext") for thumb in thumbs.all()] == ["8", "0.01"]


def test_the_map_is_clicked_before_its_first_cell_is_trained(page: Page, url: str) -> None:
    page.add_init_script("window.Worker = class { postMessage() {} terminate() {} }")  # workers that are never done
    page.goto(f"{url}/?view=lab")
    click_the_map(page)


def test_a_tab_in_the_background_trains_and_shows_it_when_it_is_looked_at(page: Page, url: str) -> None:
    first = opened(page, f"{url}/?view=lab{STEPS}")
    page.evaluate("""() => {  // what a browser does with a hidden tab: no redraws
      window.rest = [window.requestAnimationFrame]
      window.requestAnimationFrame = (act) => window.rest.push(act)
    }""")
    press(page, "lag", "Home")
    page.wait_for_url("**lag=0**")
    page.wait_for_function(
        "[...document.querySelector('.rl-lab').parentElement.lab.trained.keys()].filter("
        "(key) => JSON.parse(key)[0].lag === 0).length > 16"
    )
    assert page.locator(".rl-lab-title").inner_text() == first
    page.evaluate("""() => {
      const [draw, ...acts] = window.rest
      window.requestAnimationFrame = draw
      acts.forEach((act) => draw(act))
    }""")
    expect(page.locator(".rl-lab-title")).to_contain_text("8 seeds show no difference")


def test_a_card_opens_its_setting_whatever_was_set_before(page: Page, url: str) -> None:
    opened(page, f"{url}/?view=lab{STEPS}&noise=2&penalty=k2")
    page.locator(".stMain").get_by_text("Healthy").locator(
        "xpath=ancestor::*[@data-testid='stVerticalBlock'][1]"
    ).get_by_role("link", name="Open").click()
    page.wait_for_url(lambda now: "lag=0" in now and "noise" not in now and "penalty" not in now)
    assert "8 seeds show no difference, +0.00" in title(page)


def test_what_the_address_cannot_have_is_said_and_the_rest_holds(page: Page, url: str) -> None:
    opened(page, f"{url}/?view=lab{STEPS}&lag=99&learning_rate=x&ratio=tok&noise=0.5")
    said = page.locator("[data-testid=stAlert]").all_inner_texts()
    assert any("lag must be 0 to 64; got 99. Using 16." in sentence for sentence in said)
    assert any("learning_rate='x' is not a number; using 0.05." in sentence for sentence in said)
    assert any("Did you mean 'token'?" in sentence for sentence in said)
    assert settings(page)["noise"] == 0.5


@pytest.mark.parametrize("trouble", ["none", "fails"])
def test_without_workers_the_page_trains_by_itself_and_says_so(page: Page, url: str, trouble: str) -> None:
    broken = {
        "none": "delete window.Worker",
        "fails": "window.Worker = class { constructor() { setTimeout(() => this.onerror(new Event('error')), 50) } "
        "postMessage() {} terminate() {} }",
    }[trouble]
    page.add_init_script(broken)
    opened(page, f"{url}/?view=lab{STEPS}")
    said = {"none": "This browser starts no Web Workers", "fails": "A Web Worker of this page has failed"}[trouble]
    expect(page.locator(".rl-lab-trouble")).to_contain_text(said)


def test_the_lab_can_be_read_and_used_by_everybody(page: Page, url: str) -> None:
    opened(page, f"{url}/?view=lab{STEPS}")
    assert unreadable(page) == set()
