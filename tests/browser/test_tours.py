"""A guided tour as a person takes it: from a card to a page, with a drag, to the end of a step, and out."""

from app_runs import settled, visit
from playwright.sync_api import Page, expect
from thumbs import strip_is_there


def test_a_card_begins_a_tour_that_a_drag_ticks(page: Page, url: str) -> None:
    """A reload shows the same step; after Leave the address names no tour."""
    visit(page, f"{url}/?run=bf16")
    page.get_by_role("link", name="Open the healthy run").click()
    tour = page.locator(".st-key-tour")
    expect(tour).to_contain_text("step 1 of 4")
    strip_is_there(page)
    slider = page.locator("[data-slider=live_seq_mean_k1_upper]")
    expect(slider).to_have_css("outline-style", "solid")
    slider.locator("input[type=range]").press("End")
    expect(tour.get_by_label("1, done")).to_be_visible()
    expect(slider).not_to_have_css("outline-style", "solid")
    tour.get_by_role("button", name="Next").click()
    expect(tour).to_contain_text("step 2 of 4")
    settled(page)
    page.reload()
    expect(tour).to_contain_text("step 2 of 4")
    tour.get_by_role("button", name="Leave the tour").click()
    expect(page.get_by_text("step 2 of 4")).to_have_count(0)
    page.wait_for_function("!location.search.includes('tour')")
