"""The Training view in a real Chromium: clicks on curves, the URL, and a training run that is followed and stopped."""

import re
from pathlib import Path

import pytest
from app_runs import LINE, fits_a_phone, pick, says_open, settled
from playwright.sync_api import Page, expect
from tiny import save_tiny_model

from rlcorr.command import launch
from rlcorr.records import runs
from rlcorr.records.verify import verify


def visit(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector(".st-key-curve_reward .main-svg")
    settled(page)


def click(page: Page, picture: str, share: float) -> None:
    """In the middle of a picture's axes, at this share of their width."""
    axes = page.locator(f".st-key-{picture} .nsewdrag").first
    axes.scroll_into_view_if_needed()
    box = axes.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=3)
    page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_a_click_on_a_curve_opens_that_step_in_every_view(page: Page, url: str) -> None:
    """Steps 10, 20 and 30 from edge to edge: the middle is 20. It works again after the picture was redrawn."""
    visit(page, f"{url}/training?run=curves")
    for picture, share, step in (("curve_reward", 0.02, 10), ("curve_reward", 0.98, 30), ("curve_mismatch", 0.5, 20)):
        click(page, picture, share)
        page.wait_for_url(re.compile(f"step={step}"))
        settled(page)
    page.get_by_role("link", name="Mismatch", exact=True).first.click()
    says_open(page, "curves · step 20", "3 steps recorded")
    page.wait_for_url(re.compile("step=20.*view=mismatch|view=mismatch.*step=20"))


def test_a_comparison_is_in_the_url_and_survives_reload_and_views_and_a_study_asks_for_no_run(
    page: Page, url: str
) -> None:
    visit(page, f"{url}/training?run=curves")
    pick(page, "Compare with", "beta")
    page.wait_for_url(re.compile("with=beta"))
    names = page.locator(".st-key-curve_reward .annotation-text")
    both = ["curves", "beta"]
    expect(names).to_have_text(both)
    page.reload()
    expect(names).to_have_text(both)
    page.get_by_role("link", name="Tokens", exact=True).first.click()
    page.wait_for_url(re.compile("view=tokens"))
    settled(page)
    page.get_by_role("link", name="Training", exact=True).click()
    expect(names).to_have_text(both)
    page.wait_for_url(re.compile("with=beta"))
    page.get_by_role("radio", name="Study").click()
    expect(page.get_by_text("There is no index of studies")).to_be_visible()
    expect(page.locator(LINE)).to_be_hidden()
    page.get_by_role("radio", name="Train", exact=True).click()
    expect(page.get_by_role("button", name="Train the small model")).to_be_visible()
    settled(page)
    fits_a_phone(page)
    page.get_by_role("radio", name="Runs").click()
    expect(page.locator(LINE)).to_be_visible()
    expect(names).to_have_text(both)


def test_a_training_is_followed_in_two_sessions_and_stopped(
    page: Page, another_page: Page, url: str, root: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started from another process, with fewer prompts and a lighter engine than the page's buttons have."""
    save_tiny_model(root / "warm_start" / "checkpoint")
    monkeypatch.setattr(runs, "ROOT", root)
    monkeypatch.setattr(runs, "LOCAL", local)
    launch.start(["--rollout.engine", "transformers", "--prompts-per-step", "4"], task="addition")
    page.goto(f"{url}/training?run=beta&part=Train")
    expect(page.get_by_text("addition_1 is in progress.")).to_be_visible()
    expect(page.get_by_text("A training run is in progress. You can start another one")).to_be_visible()
    another_page.set_viewport_size({"width": 390, "height": 844})
    another_page.goto(f"{url}/training?run=beta")
    expect(another_page.get_by_text(re.compile(r"Step \d+ of 400 · .* left at this pace"))).to_be_visible()
    another_page.get_by_role("button", name="Show its last batch").click()
    another_page.wait_for_url(re.compile("run=addition_1"))
    assert another_page.get_by_test_id("stMain").evaluate("e => e.scrollWidth <= e.clientWidth")
    another_page.get_by_role("button", name="Stop").click()
    expect(another_page.get_by_text("addition_1 was stopped. Its finished steps can be read.")).to_be_visible()
    expect(page.get_by_text("addition_1 was stopped.")).to_be_visible()
    page.get_by_role("button", name="Hide this").click()
    expect(page.get_by_role("button", name="Train the small model")).to_be_visible()
    report = verify(local / "addition_1")
    assert (report.status, report.problems) == ("interrupted", [])
