"""Your data in a browser: the verdict in the first screen, refusals in words, and whole numbers on a phone."""

import os
from pathlib import Path

import pytest
from app_runs import fits_a_phone, free_port, make_run, serve, settled
from browser_runs import BOX, drop, pairs
from playwright.sync_api import Page, expect

BROKEN = """() => [...document.querySelectorAll(".st-key-yours .rl-table td:not(:first-child)")].filter((cell) => {
  const number = document.createRange(), first = cell.querySelector("span")?.firstChild ?? cell.firstChild
  number.selectNodeContents(first)
  return number.getClientRects().length > 1
}).map((cell) => cell.innerText)"""


@pytest.mark.parametrize("height", [720, 900])
def test_the_verdict_is_in_the_first_screen_and_a_refusal_replaces_it(page: Page, url: str, height: int) -> None:
    page.set_viewport_size({"width": 1280 if height == 720 else 1440, "height": height})
    page.goto(f"{url}/yours")
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    drop(page, "mine.jsonl", pairs())
    verdict = page.get_by_role("heading", name="Looks like precision")
    expect(verdict).to_be_in_viewport(ratio=1)
    expect(page.get_by_text("mine.jsonl: 40 sequences, 1,200 tokens")).to_be_visible()
    expect(page.get_by_text("Not in the file")).to_be_hidden()
    settled(page)  # until then the page may have the text of the example, and then both for a moment
    expect(page.get_by_text("calculate_log_probs: true")).to_have_count(1)
    expect(page.get_by_text("calculate_log_probs: true")).to_be_visible()
    page.get_by_text("mine.jsonl: 40 sequences, 1,200 tokens").click()
    expect(page.get_by_text("Not in the file")).to_be_visible()
    drop(page, "table.zip", b"PK\x03\x04")
    expect(page.get_by_text("'table.zip': files that end in")).to_be_visible()
    expect(verdict).to_have_count(0)
    expect(page.get_by_text("calculate_log_probs: true")).to_have_count(0)


def test_a_file_that_is_too_large_says_so_and_hides_the_run_before(page: Page, url: str, tmp_path: Path) -> None:
    large = tmp_path / "large.npz"
    large.touch()
    os.truncate(large, 201 << 20)
    page.goto(f"{url}/yours")
    page.wait_for_selector(BOX, state="attached")
    expect(page.get_by_text("As an example")).to_be_visible()
    page.set_input_files(BOX, large)
    expect(page.get_by_text("it is larger than 200 MB")).to_be_visible()
    expect(page.get_by_text("As an example")).to_be_hidden()


def test_numbers_are_whole_on_a_phone(phone: Page, url: str) -> None:
    phone.goto(f"{url}/yours")
    phone.wait_for_selector(BOX, state="attached")
    settled(phone)
    drop(phone, "mine.jsonl", pairs())
    expect(phone.get_by_role("heading", name="Looks like precision")).to_be_attached()
    expect(phone.get_by_text("Is this gap normal?")).to_be_attached()
    settled(phone)
    assert phone.locator(".st-key-yours .rl-table td").count() > 50
    assert phone.evaluate(BROKEN) == []
    fits_a_phone(phone)


def test_a_threshold_is_written_although_the_batch_lacks_what_the_rule_needs(page: Page, url: str) -> None:
    """Without a strip each move asks the server, whose values have the present one among them: the list changes."""
    page.goto(f"{url}/yours")
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    drop(page, "mine.jsonl", pairs())
    page.wait_for_url("**run=upload_**")
    page.goto(f"{page.url.replace('yours', 'bench')}&preset=trl_opsm")
    expect(page.get_by_text("the batch has no advantages.").first).to_be_visible()
    settled(page)
    slider = page.locator("[data-slider=live_seq_mean_k1_negative_lower]")
    slider.locator("input[type=range]").press("End")
    page.wait_for_url("**seq_mean_k1_negative_lower=0.378*")
    expect(slider.locator("input:not([type=range])")).to_have_value("0.378")
    expect(page.locator("[data-testid=stException]")).to_have_count(0)


def test_files_that_a_restarted_server_has_lost_do_not_keep_the_next_one_out(page: Page, tmp_path: Path) -> None:
    """The next file comes with the first request that the restarted server sees, together with the lost one."""
    make_run(tmp_path, "alpha")
    port = free_port()
    with serve(tmp_path, port=port) as url:
        page.goto(f"{url}/yours")
        page.wait_for_selector(BOX, state="attached")
        settled(page)
        drop(page, "mine.jsonl", pairs(8))
        page.wait_for_url("**run=upload_**")
        settled(page)
    page.wait_for_selector('[data-testid="stApp"]:not([data-test-connection-state="CONNECTED"])')
    before = page.url
    with serve(tmp_path, port=port):
        settled(page)
        drop(page, "other.jsonl", pairs(8))
        page.wait_for_url(lambda now: now != before and "run=upload_" in now)
        settled(page)
        expect(page.get_by_text("other.jsonl: 8 sequences")).to_be_visible()
        expect(page.locator("[data-testid=stException]")).to_have_count(0)
