"""What a test of a dragged slider does in a real Chromium, and what it waits for."""

from app_runs import pick_folded, settled
from playwright.sync_api import Locator, Page, expect


def thumb(page: Page) -> Locator:
    """Of the threshold; the gradient view has another slider."""
    return page.locator(".rl-slider input").first


def hold(page: Page, share: float) -> None:
    """Press the mouse on the thumb, pull it to this share of the slider's width, and keep it pressed."""
    thumb(page).scroll_into_view_if_needed()
    box = thumb(page).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=8)


def strip_is_there(page: Page) -> None:
    """Each slider has the strip of all its places."""
    page.wait_for_function("() => [...document.querySelectorAll('.rl-slider')].every((slider) => slider.isReady())")


def texts(page: Page) -> list[str]:
    return [*page.locator(".rl-number b").all_inner_texts(), page.locator(".rl-note").first.inner_text()]


def quiet(page: Page) -> None:
    """Wait until the last place of each thumb has been drawn."""
    page.wait_for_function("""async () => {
      const frame = () => new Promise(requestAnimationFrame)
      await frame()
      if (![...document.querySelectorAll(".rl-slider")].every((slider) => slider.isQuiet())) return false
      await frame()
      return true
    }""")


def another_preset(page: Page, name: str) -> None:
    """Pick a preset whose note is another one."""
    note = page.locator(".rl-note").first
    before = note.inner_text()
    pick_folded(page, "Preset", name)
    page.wait_for_url(f"**preset={name}**")
    expect(note).not_to_have_text(before)
    settled(page)
