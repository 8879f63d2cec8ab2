"""Random walks through the app (support/walking.py), each in one session.

`WALKS=100 WALK_FROM=3 WALK_STEPS=8 pytest tests/browser/test_walk.py` walks with other seeds and lengths.
"""

import os
from pathlib import Path

import pytest
from app_runs import PATIENCE, add_step, free_port, make_record, make_run, serve, settled, visit
from browser_runs import BOX, a_box_a_view_and_a_switch_at_once, drop, pairs
from playwright.sync_api import Page, expect
from slow_network import slow
from thumbs import hold, quiet, strip_is_there
from walking import Walk

STEPS = int(os.environ.get("WALK_STEPS", "20"))
"""Steps of a walk. A step takes a second."""
FIRST = int(os.environ.get("WALK_FROM", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("WALKS", "20")))


def begun(page: Page, url: str, seed: int, *, drops: bool = True) -> Walk:
    print(f"seed {seed}")
    visit(page, f"{url}/?view={('bench', 'mismatch' if not drops else 'yours')[seed % 2]}")
    return Walk(page, seed, drops)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk(page: Page, url: str, seed: int) -> None:
    begun(page, url, seed).go_on(STEPS)


def test_two_tabs_of_one_visitor_do_not_know_of_each_other(page: Page, another_page: Page, url: str) -> None:
    walks = begun(page, url, 1), begun(another_page, url, 2)
    for _ in range(6):
        for walk in walks:
            walk.page.bring_to_front()
            walk.go_on(1)


def test_a_server_may_be_restarted_in_the_middle(page: Page, root: Path) -> None:
    """The address of the page has all that the new server needs. Dropped files are gone with the old one."""
    port = free_port()
    with serve(root, port=port) as url:
        walk = begun(page, url, 3, drops=False)
        walk.go_on(5)
    page.evaluate("window.isOld = true")
    with serve(root, port=port):
        page.wait_for_function("window.isOld === undefined")
        walk.again("a restart of the server")
        walk.go_on(5)


def test_a_slow_network_loses_nothing(page: Page, url: str) -> None:
    """1.6 megabits a second, and a tenth of a second each way."""
    with slow(url, bytes_per_second=200_000, delay=0.1) as slow_url:
        begun(page, slow_url, 4).go_on(6)


def test_what_is_pressed_before_the_page_has_answered_counts(page: Page, url: str) -> None:
    """On a slow network: a preset, another view and a box, each before the browser has heard of the one before."""
    with slow(url, bytes_per_second=400_000, delay=0.3) as slow_url:
        a_box_a_view_and_a_switch_at_once(page, slow_url)


def test_a_file_that_is_dropped_while_a_run_is_watched_is_read(page: Page, url: str, local: Path) -> None:
    run = make_run(local, "growing", steps=1, status="running")
    page.goto(f"{url}/?view=yours&run=growing")
    page.wait_for_selector(BOX, state="attached")
    settled(page)
    for step in (1, 2):
        with page.expect_response("**/watched/**"):
            add_step(run, make_record(step))
        drop(page, f"file_{step}.jsonl", pairs(16, 10 + step))
        expect(page.get_by_text(f"file_{step}.jsonl: 16 answers")).to_be_visible()
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
