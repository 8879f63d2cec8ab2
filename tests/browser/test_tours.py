"""Every step of every tour as a person takes it, by mouse and as it is written, over the committed runs."""

import re
from collections.abc import Callable, Iterator

import pytest
from app_runs import PROJECT, pick, pick_folded, serve, settled, visit
from playwright.sync_api import Locator, Page, expect
from thumbs import strip_is_there


@pytest.fixture(scope="module")
def committed() -> Iterator[str]:
    with serve(PROJECT / "runs") as url:
        yield url


def pull(to: str, enough: float) -> Callable[[Page], None]:
    """Return what pulls the thumb of a slider with the mouse until its number is at least or at most this one."""
    key, is_up = to.removeprefix("+"), to.startswith("+")

    def act(page: Page) -> None:
        strip_is_there(page)
        thumb = page.locator(f"[data-slider={key}] input[type=range]")
        thumb.scroll_into_view_if_needed()
        box = thumb.bounding_box()
        assert box is not None
        y, places = box["y"] + box["height"] / 2, int(thumb.get_attribute("max") or 0)
        at = box["x"] + 8 + (box["width"] - 16) * int(thumb.input_value()) / places  # 8: half of a thumb
        # The direction in which the number goes where it should; for a lower bound that is to the right, too.
        right = is_up or key.endswith("lower")
        page.mouse.move(at, y)
        page.mouse.down()
        while (number_of(thumb) < enough) if is_up else (number_of(thumb) > enough):
            at += 4 if right else -4
            assert box["x"] - 8 < at < box["x"] + box["width"] + 8, f"{key} ends at {number_of(thumb)}"
            page.mouse.move(at, y)
        page.mouse.up()

    return act


def number_of(thumb: Locator) -> float:
    return float(thumb.get_attribute("aria-valuetext") or "nan")


def click_token(page: Page) -> None:
    page.locator(".response .token").first.click()


def another_method(page: Page) -> None:
    page.locator(".st-key-methods input").press("Backspace")  # one less


def another_arm(page: Page) -> None:
    page.locator(".st-key-presets input").press("Backspace")


def preset(name: str) -> Callable[[Page], None]:
    return lambda page: pick_folded(page, "Preset", name)


def study(page: Page) -> None:
    pick(page, "Mismatch", "stale_0")


def reject(page: Page) -> None:
    page.get_by_role("radio", name="reject", exact=True).click()
    page.wait_for_url("**fix=reject**")
    settled(page)
    pull("start_bound", 1.05)(page)


def look(page: Page) -> None:
    """Nothing is to be pressed."""


STEPS: dict[str, list[Callable[[Page], None]]] = {
    "healthy": [pull("+live_seq_mean_k1_upper", 1.04), pull("live_seq_mean_k1_lower", 0.96), look, click_token],
    "stale": [another_method, pull("live_is_upper", 1.1), preset("decoupled_geo_rs"), look],
    "collapsing": [another_arm, study, pull("live_is_upper", 1.1)],
    "long": [pull("live_is_upper", 1.5), preset("decoupled_token_icepop"), look],
    "class": [reject, look, click_token, pull("live_is_upper", 1.1), look],
}
FIRST = {
    "healthy": "view=bench&run=smol_bf16_both&preset=decoupled_geo_rs", "stale": "view=mismatch&run=smol_stale_6",
    "collapsing": "view=training&part=Study&study=stale_8", "class": "view=start&run=smol_kv_fp8_e5m2",
    "long": "view=bench&run=long_kv_fp8_e5m2&preset=decoupled_seq_is",
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_every_step_can_be_done_as_it_is_written(page: Page, committed: str, name: str) -> None:
    """The answer of a step waits for Reveal, and what was dragged stays when the tour changes the page."""
    visit(page, f"{committed}/?{FIRST[name]}&tour={name}")
    tour, dragged = page.locator(".st-key-tour"), ""
    for number, act in enumerate(STEPS[name], 1):
        expect(tour).to_contain_text(f"step {number} of {len(STEPS[name])}")
        settled(page)
        assert dragged in page.url
        answer = tour.locator("strong").nth(1)
        expect(answer).to_have_count(0)
        act(page)
        expect(tour.get_by_label(f"{number}, done")).to_be_visible()
        tour.get_by_role("button", name="Reveal").click()
        expect(answer).to_be_visible()
        settled(page)
        moved = re.findall(r"seq_mean_k1_upper=[\d.]+", page.url)
        dragged = moved[0] if moved else ""
        if number < len(STEPS[name]):
            tour.get_by_text("Next", exact=True).click()
    tour.get_by_role("button", name="Finish").click()
    page.wait_for_function("!location.search.includes('tour')")


def test_a_card_begins_a_tour_and_a_reload_keeps_its_step(page: Page, committed: str) -> None:
    visit(page, f"{committed}/?view=bench&run=smol_bf16_both&preset=decoupled_geo_rs&tour=healthy&tour_step=2")
    tour = page.locator(".st-key-tour")
    expect(page.locator("[data-slider=live_seq_mean_k1_lower]")).to_have_css("outline-style", "solid")
    page.reload()
    expect(tour).to_contain_text("step 2 of 4")
    tour.get_by_role("button", name="Leave the tour").click()
    expect(page.get_by_text("step 2 of 4")).to_have_count(0)
