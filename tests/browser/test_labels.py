"""Texts inside pictures, in a real Chromium: names of rows on wide and narrow pages, and the line with the source."""

import re
from typing import Literal

import pytest
from app_runs import visit
from playwright.sync_api import Page

from rlcorr.presets import PRESETS, RANKED
from rlcorr.presets.titles import title

# The names of the rows of the ranking: where each is, whether it is above its row, and the boxes of the bars.
ROWS = """() => {
  const box = document.querySelector("[data-picture=ranking] .rl-picture"), frame = box.getBoundingClientRect()
  const area = box.querySelector(".nsewdrag").getBoundingClientRect()
  const at = (node) => { const r = node.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] }
  const of = (css) => [...box.querySelectorAll(css)]
  const above = of(".annotation-text").filter((text) => at(text)[3] < area.bottom + 1)
  const names = above.length ? above : of(".ytick text")
  return {
    isAbove: above.length > 0, left: frame.left, right: frame.right, height: area.height,
    names: names.map((text) => [text.textContent, ...at(text)]),
    bars: of(".barlayer .point path").map(at).filter(([left, , right]) => right > left),
  }
}"""
# Plotly draws a picture of another width twice: first with the old width, then with the new one.
FITS = f"""(above) => {{
  if (!document.querySelector("[data-picture=ranking] .nsewdrag")) return false
  const {{ isAbove, left, right, names }} = ({ROWS})()
  return isAbove === above && names.every(([, start, , end]) => left - 1 <= start && end <= right + 1)
}}"""
STAMP = """() => {
  const text = [...document.querySelectorAll("[data-picture=ranking] .annotation-text")].at(-1)
  let opacity = 1, ground = ""
  for (let node = text; node; node = node.parentElement) {
    const style = getComputedStyle(node)
    opacity *= Number(style.opacity)
    if (!ground && style.backgroundColor !== "rgba(0, 0, 0, 0)") ground = style.backgroundColor
  }
  const { fill, fontSize } = getComputedStyle(text)
  return { text: text.textContent, size: parseFloat(fontSize), fill, opacity, ground }
}"""


def titles_of_rows(page: Page, *, above: bool) -> list[str]:
    """Return the names of the rows of the ranking, all inside the picture and none over a bar."""
    page.wait_for_function(FITS, arg=above)
    rows = page.evaluate(ROWS)
    assert len(rows["names"]) == len(RANKED)
    for name, left, top, right, bottom in rows["names"]:
        over = [b for b in rows["bars"] if b[0] < right and b[2] > left and b[1] < bottom - 3 and b[3] > top + 3]
        assert not over, name  # a letter is lower than its line
    assert rows["height"] / len(RANKED) <= 22.5, "a row is one line of text and a bar"
    return [name for name, *_ in rows["names"]]


def test_rows_have_titles_beside_them_or_above_them_on_a_narrow_page(page: Page, url: str) -> None:
    visit(page, f"{url}/gradient?run=sketched")
    wide = titles_of_rows(page, above=False)
    assert f"{title(PRESETS['disabled'])} · verl" in wide
    page.set_viewport_size({"width": 390, "height": 844})
    narrow = titles_of_rows(page, above=True)
    assert not set(narrow) & set(PRESETS), "no row has a name only"
    assert [name.rpartition(" · ")[2] for name in narrow] == [name.rpartition(" · ")[2] for name in wide]
    cut = [name for name in narrow if "…" in name]
    assert cut
    longer = dict(zip(narrow, wide, strict=True))
    assert all(longer[name].startswith(name.partition(" …")[0]) for name in cut), "whole words are left out"
    page.set_viewport_size({"width": 1440, "height": 900})
    assert titles_of_rows(page, above=False) == wide


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_source_in_a_picture_can_be_read(page: Page, url: str, scheme: Literal["light", "dark"]) -> None:
    """At least 11 pixels high, with a contrast of at least 4.5 to 1 as WCAG 2.2 (1.4.3) computes it."""
    page.emulate_media(color_scheme=scheme)
    visit(page, f"{url}/gradient?run=sketched")
    page.wait_for_selector("[data-picture=ranking] .annotation-text")
    stamp = page.evaluate(STAMP)
    assert stamp["text"].startswith("sketched · step 0")
    assert stamp["size"] >= 11
    ground, ink = (light_of(stamp[name]) for name in ("ground", "fill"))
    mixed = [stamp["opacity"] * a + (1 - stamp["opacity"]) * b for a, b in zip(ink, ground, strict=True)]
    darker, lighter = sorted((luminance(mixed), luminance(ground)))
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
    assert (luminance(ground) < 0.2) == (scheme == "dark")


def light_of(colour: str) -> list[float]:
    return [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]


def luminance(colour: list[float]) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
