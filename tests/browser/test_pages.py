"""The app in a real Chromium: what only a browser can show."""

import re
from pathlib import Path

from app_runs import FITS, add_step, make_record, make_run, says_open, settled, visit
from browser_runs import SCRIPT
from playwright.sync_api import Page, ViewportSize, WebSocketRoute, expect
from thumbs import another_preset

PHONE: ViewportSize = {"width": 390, "height": 844}


def metric(page: Page, label: str):
    return page.locator(f"[data-number='{label}'] b")


def grab(page: Page, share: float) -> None:
    """Press the mouse on the live slider at this share of its width, and hold it."""
    box = page.get_by_role("slider").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()


def test_the_bench_moves_while_the_mouse_is_down_is_ruled_by_keys_and_fits_a_phone(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?preset=decoupled_token_is")
    numbers_and_pictures_move_while_the_mouse_is_down(page)
    another_preset(page, "decoupled_geo_rs")
    the_slider_works_with_the_keyboard_and_says_its_value(page)
    settled(page)
    another_preset(page, "decoupled_k3_rs_token_tis")
    a_phone_has_the_bound_before_the_budget(page)


def numbers_and_pictures_move_while_the_mouse_is_down(page: Page) -> None:
    """Drag the bound: a picture keeps its element."""
    weights = page.locator("[data-picture=weights] .rl-picture")
    drawn = weights.locator(".barlayer").first.inner_html()
    page.evaluate("window.kept = document.querySelector('[data-picture=weights] .main-svg')")
    before = metric(page, "Mean weight").inner_text()
    grab(page, 0.5)
    box = page.get_by_role("slider").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 10, steps=5)
    expect(metric(page, "Mean weight")).not_to_have_text(before)
    page.wait_for_function(
        "old => document.querySelector('[data-picture=weights] .barlayer').innerHTML !== old", arg=drawn
    )
    assert "is_upper" not in page.url  # nothing is written before the slider is let go
    page.mouse.up()
    assert page.evaluate("window.kept.isConnected")
    page.wait_for_url(re.compile(r"is_upper=1\.\d+"))
    settled(page)


def the_slider_works_with_the_keyboard_and_says_its_value(page: Page) -> None:
    slider = page.get_by_role("slider", name="Largest mean ratio (seq_mean_k1)")
    expect(slider).to_have_attribute("aria-valuetext", "1.001")
    slider.focus()
    slider.press("PageUp")
    expect(slider).not_to_have_attribute("aria-valuetext", "1.001")
    page.wait_for_url(re.compile(r"seq_mean_k1_upper=1\.00\d+"))


def a_phone_has_the_bound_before_the_budget(page: Page) -> None:
    """Look at a small screen, which scrolls only downwards."""
    page.set_viewport_size(PHONE)
    page.wait_for_function(FITS)
    parts = (".st-key-open", ".rl-slider", "[data-picture=mask]", ".st-key-budget")
    tops = [page.locator(part).first.evaluate("e => e.getBoundingClientRect().top") for part in parts]
    assert tops == sorted(tops)


def test_a_link_restores_the_bench_another_view_keeps_its_bounds_and_a_button_resets_them(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?run=alpha&preset=decoupled_token_icepop&is_upper=3&is_lower=0.8&step=0")
    expect(page.get_by_role("slider", name="Largest weight")).to_have_attribute("aria-valuetext", "3")
    expect(page.get_by_text("outside [0.8, 3]")).to_be_visible()
    says_open(page, "alpha · step 0", "2 steps recorded")
    page.get_by_role("link", name="Training", exact=True).click()
    expect(page.get_by_text("Where this run comes from")).to_be_visible()
    page.get_by_role("link", name="Correction bench").first.click()
    expect(page.get_by_text("outside [0.8, 3]")).to_be_visible()
    page.wait_for_url(re.compile("is_upper=3"))
    settled(page)
    page.get_by_role("button", name="Reset to the preset's numbers").click()
    expect(page.get_by_text("outside [0.5, 5]")).to_be_visible()
    page.wait_for_url(lambda address: "is_upper" not in address and "is_lower" not in address)
    expect(page.get_by_role("slider", name="Largest weight")).to_have_attribute("aria-valuetext", "5")


def test_the_back_button_takes_a_threshold_back(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?preset=decoupled_seq_is")
    slider = page.get_by_role("slider", name="Largest weight")
    slider.focus()
    slider.press("PageDown")
    page.wait_for_url(re.compile("is_upper="))
    expect(page.get_by_text("a weight above 2 becomes 2")).to_have_count(0)
    page.go_back()
    expect(page.get_by_text("a weight above 2 becomes 2")).to_be_visible()
    expect(slider).to_have_attribute("aria-valuetext", "2")


def test_a_link_shows_what_it_names_and_one_back_leaves_it(page: Page, url: str) -> None:
    """Whatever preset and bound were shown before; the first preset that can be looked up corrects nothing."""
    visit(page, f"{url}/bench?preset=decoupled_seq_is&is_upper=7&run=alpha&step=0")
    page.get_by_role("link", name="Learn", exact=True).click()
    page.get_by_text("Cheat sheet").click()
    link = page.get_by_role("link", name="Open it in the bench")
    expect(link).to_be_visible()
    settled(page)
    link.click()
    expect(page.locator("[data-picture=mask]")).to_be_visible()
    expect(page.locator(".rl-note", has_text="No importance weights: every token counts")).to_be_visible()
    settled(page)
    assert "is_upper" not in page.url
    page.go_back()
    expect(page.get_by_role("heading", name="What do you want to understand?")).to_be_visible()


def test_a_link_of_the_navigation_has_an_outline_while_the_keyboard_is_on_it(page: Page, url: str) -> None:
    visit(page, f"{url}/bench?run=alpha")
    link = page.get_by_role("link", name="Your data", exact=True)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        expect(link).to_have_css("outline-style", "none")
        page.get_by_role("link", name="Start", exact=True).focus()
        page.keyboard.press("Tab")
        expect(link).to_be_focused()
        expect(link).to_have_css("outline-style", "solid")
        page.keyboard.press("Tab")


def test_a_run_grows_while_one_watches(page: Page, url: str, local: Path) -> None:
    """Its line does so by itself, and offers the step, which changes the page only when somebody asks for it."""
    run = make_run(local, "mine", steps=1, status="running")
    visit(page, f"{url}/training")
    says_open(page, "mine · step 0", "1 step recorded · running")
    add_step(run, make_record(1))
    says_open(page, "mine · step 0", "2 steps recorded · running")
    page.get_by_role("button", name="Show step 1").click()
    says_open(page, "mine · step 1", "2 steps recorded · running")
    points = page.locator(".st-key-curve_reward .trace").first.locator(".points path")  # rings have their own
    expect(points).to_have_count(2)


def test_text_of_a_picked_run_is_shown_literally_and_a_new_run_is_offered(page: Page, url: str, local: Path) -> None:
    visit(page, f"{url}/training?run=alpha")
    expect(page.get_by_role("cell", name=SCRIPT, exact=True).first).to_be_visible()
    assert page.title() == "rlcorr"
    assert page.locator("a[href^='javascript']").count() == 0
    assert page.locator(".rl-table .katex, .rl-table code").count() == 0
    make_run(local, "mine", steps=1, status="running")
    page.get_by_role("link", name="Mismatch", exact=True).first.click()
    expect(page.get_by_text("A new run has appeared: mine.")).to_be_visible()
    says_open(page, "alpha · step 1", "2 steps recorded")
    page.get_by_role("button", name="Show it").click()
    says_open(page, "mine · step 0", "1 step recorded · running")
    page.wait_for_url(re.compile("run=mine"))


def test_a_damaged_run_shows_no_traceback(page: Page, url: str, local: Path) -> None:
    run = make_run(local, "damaged", steps=2)
    (run / "manifest.json").write_text("{")
    (run / "steps" / "step_000001.parquet").write_bytes(b"PAR1")
    visit(page, f"{url}/training?run=damaged")
    expect(page.get_by_text("Showing step 0, the newest that can be read.")).to_be_visible()
    expect(page.get_by_text("not a readable manifest")).to_be_visible()
    assert page.get_by_test_id("stException").count() == 0


def test_a_story_opens_the_run_that_it_names(page: Page, url: str) -> None:
    """Inside one session, where the picker of the run has a value already, and again after Back and Forward."""
    visit(page, url)
    state = page.locator(".st-key-pickers")
    expect(state).to_contain_text("smol_kv_fp8_e5m2 · step")
    page.get_by_role("link", name="Open the healthy run").click()
    page.wait_for_url(re.compile("view=bench"))
    expect(state).to_contain_text("smol_bf16_both · step")
    page.go_back()
    expect(state).to_contain_text("smol_kv_fp8_e5m2 · step")
    page.go_forward()
    expect(state).to_contain_text("smol_bf16_both · step")
    settled(page)


def test_a_page_without_a_websocket_says_so(page: Page, url: str) -> None:
    """Ten seconds after it was drawn; and no longer when there is one."""
    refused = [True]

    def relay(socket: WebSocketRoute) -> None:
        if refused:
            socket.close()
        else:
            socket.connect_to_server()

    page.route_web_socket("**/_stcore/stream", relay)
    page.goto(f"{url}/?view=bench")
    said = page.get_by_role("alert").filter(has_text="cannot open a websocket")
    expect(said).to_contain_text('make app ARGS="--host 127.0.0.1"')
    refused.clear()
    expect(said).to_have_count(0)
    expect(page.get_by_text("What does this threshold throw away")).to_be_visible()
