"""Random walks through the app (support/walking.py), each in one session.

`WALKS=100 WALK_FROM=3 WALK_STEPS=8 pytest tests/browser/test_walk.py` walks with other seeds and lengths.
"""

import os
from pathlib import Path

import pytest
from app_runs import PATIENCE, add_step, make_record, make_run, settled, visit
from browser_runs import BOX, drop, pairs
from playwright.sync_api import Page, expect
from thumbs import hold, quiet, strip_is_there
from walking import Walk

STEPS = int(os.environ.get("WALK_STEPS", "12"))
"""Steps of a walk. A step takes a second."""
FIRST = int(os.environ.get("WALK_FROM", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("WALKS", "3")))


def begun(page: Page, url: str, seed: int) -> Walk:
    print(f"seed {seed}")
    visit(page, f"{url}/?view={('bench', 'yours')[seed % 2]}")
    return Walk(page, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk(page: Page, url: str, seed: int) -> None:
    begun(page, url, seed).go_on(STEPS)


def test_two_tabs_of_one_visitor_do_not_know_of_each_other(page: Page, another_page: Page, url: str) -> None:
    walks = begun(page, url, 1), begun(another_page, url, 2)
    for _ in range(3):
        for walk in walks:
            walk.page.bring_to_front()
            walk.go_on(1)


def test_a_file_that_is_dropped_while_a_run_is_watched_is_read(page: Page, url: str, local: Path) -> None:
    run = make_run(local, "growing", steps=1, status="running")
    page.goto(f"{url}/?view=yours&run=growing")
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    with page.expect_response("**/watched/**"):
        add_step(run, make_record(1))
    drop(page, "mine.jsonl", pairs(16))
    expect(page.get_by_text("mine.jsonl: 16 sequences")).to_be_visible()
    page.wait_for_url("**run=upload_**")
    page.go_back()
    page.wait_for_url("**run=growing**")
    expect(page.locator(".st-key-run_state")).to_contain_text("recorded · running")


def test_back_goes_over_a_drag_a_tour_and_an_upload(page: Page, url: str) -> None:
    """Each is as many entries of the history as there were choices."""
    visit(page, f"{url}/?view=bench&run=sketched&preset=decoupled_geo_rs&tour=healthy")
    shown = [page.url]
    for share in (0.3, 0.5):
        strip_is_there(page)
        hold(page, share)
        quiet(page)
        page.mouse.up()
        page.wait_for_url(lambda now: now != shown[-1])
        settled(page)
        shown.append(page.url)
    page.get_by_role("link", name="Your data", exact=True).first.click()
    page.wait_for_selector(BOX, state="attached")
    page.wait_for_url("**view=yours**")
    settled(page)
    shown.append(page.url)
    drop(page, "mine.jsonl", pairs())
    page.wait_for_url("**run=upload_**")
    settled(page)
    assert page.evaluate("history.length") <= len(shown) + 2
    for before in reversed(shown):
        page.go_back()
        page.wait_for_url(before, timeout=PATIENCE)
        settled(page)
    expect(page.locator(".rl-tour")).to_contain_text("step 1")
    for later in shown[1:]:
        page.go_forward()
        page.wait_for_url(later)
        settled(page)
