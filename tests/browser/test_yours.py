"""Your data in a browser: the verdict in the first screen, refusals in words, and whole numbers on a phone."""

import os
from pathlib import Path

from app_runs import free_port, make_run, serve, settled
from browser_runs import BOX, drop, pairs
from playwright.sync_api import Page, expect


def open_box(page: Page, url: str) -> None:
    page.goto(f"{url}/?view=yours")
    page.wait_for_selector(BOX, state="attached")
    settled(page)


def test_the_verdict_is_in_the_first_screen_and_a_refusal_replaces_it(page: Page, url: str, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    open_box(page, url)
    drop(page, "mine.jsonl", pairs())
    verdict = page.get_by_role("heading", level=1, name="Your gap looks like ordinary rounding")
    expect(verdict).to_be_in_viewport(ratio=1)
    expect(page.get_by_text("mine.jsonl: 40 answers, 1,200 tokens")).to_be_visible()
    expect(page.get_by_text("Not in the file")).to_be_hidden()
    settled(page)  # until then the page may have the text of the example, and then both for a moment
    expect(page.get_by_text("calculate_log_probs: true")).to_have_count(1)
    page.get_by_text("mine.jsonl: 40 answers, 1,200 tokens").click()
    expect(page.get_by_text("Not in the file")).to_be_visible()
    drop(page, "table.zip", b"PK\x03\x04")
    expect(page.get_by_text("'table.zip': files that end in")).to_be_visible()
    expect(verdict).to_have_count(0)
    expect(page.get_by_text("calculate_log_probs: true")).to_have_count(0)
    large = tmp_path / "large.npz"
    large.touch()
    os.truncate(large, 65 << 20)
    page.reload()
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    page.get_by_text("Drop your files here").click()  # after a reload it is folded, because the files are shown
    page.set_input_files(BOX, large)
    expect(page.get_by_text("File must be 64.0MB or smaller")).to_be_visible()
    expect(page.get_by_text("A file did not arrive")).to_be_visible()
    expect(verdict).to_have_count(0)


def test_a_proxy_that_refuses_a_small_file_is_named_by_its_status(page: Page, url: str) -> None:
    open_box(page, url)
    page.route("**/upload_file/**", lambda route: route.fulfill(status=413))
    drop(page, "mine.jsonl", pairs())
    expect(page.get_by_text("413", exact=False).first).to_be_visible()
    expect(page.get_by_text("File must be 64.0MB or smaller")).to_have_count(0)


def test_a_click_on_a_bar_takes_its_correction(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 1400})
    open_box(page, url)
    drop(page, "mine.jsonl", pairs())
    settled(page)
    expect(page.get_by_text("rollout_is: null", exact=False)).to_be_visible()
    page.locator(".rl-picture").get_by_text("Cap each token's weight at 2").click(
        force=True
    )  # Plotly's layer is over it
    expect(page.get_by_text("rollout_is: token").first).to_be_visible()
    expect(page.get_by_text("On step 1 this touches none of your tokens.")).to_be_visible()


def test_files_that_a_restarted_server_has_lost_do_not_keep_the_next_one_out(page: Page, tmp_path: Path) -> None:
    """The page is loaded anew when the server is there again. The rest of the address is shown."""
    make_run(tmp_path, "alpha")
    port = free_port()
    with serve(tmp_path, port=port) as url:
        page.goto(f"{url}/yours?keep=80+%25")
        page.wait_for_selector(BOX, state="attached")
        settled(page)
        drop(page, "mine.jsonl", pairs(8))
        page.wait_for_url("**run=upload_**")
        settled(page)
    page.evaluate("window.isOld = true")
    before = page.url
    with serve(tmp_path, port=port):
        page.wait_for_function("window.isOld === undefined")
        page.wait_for_selector(BOX, state="attached")
        settled(page)
        drop(page, "other.jsonl", pairs(8))
        page.wait_for_url(lambda now: now != before and "run=upload_" in now and "keep=80" in now)
        settled(page)
        expect(page.get_by_text("other.jsonl: 8 answers")).to_be_visible()
        expect(page.locator("[data-testid=stException]")).to_have_count(0)
