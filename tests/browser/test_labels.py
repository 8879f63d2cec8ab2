"""Texts inside pictures, in a real Chromium: names of rows on wide and narrow pages."""

from app_runs import visit
from playwright.sync_api import Page

from rlcorr.presets import PRESETS
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


def titles_of_rows(page: Page, *, above: bool) -> list[str]:
    """Return the names of the rows of the ranking, all inside the picture and none over a bar."""
    page.wait_for_function(FITS, arg=above)
    rows = page.evaluate(ROWS)
    assert len(rows["names"]) == 10
    for name, left, top, right, bottom in rows["names"]:
        over = [b for b in rows["bars"] if b[0] < right and b[2] > left and b[1] < bottom - 3 and b[3] > top + 3]
        assert not over, name  # a letter is lower than its line
    assert rows["height"] / 10 <= 27.5, "a row is one line of text and a bar"
    return [name for name, *_ in rows["names"]]


def test_rows_have_titles_above_them_where_a_picture_is_narrow(page: Page, url: str) -> None:
    visit(page, f"{url}/gradient?run=sketched")
    wide = titles_of_rows(page, above=True)
    assert f"{title(PRESETS['disabled'])} · verl" in wide
    page.set_viewport_size({"width": 390, "height": 844})
    narrow = titles_of_rows(page, above=True)
    assert not set(narrow) & set(PRESETS), "no row has a name only"
    assert [name.rpartition(" · ")[2] for name in narrow] == [name.rpartition(" · ")[2] for name in wide]
    longer = dict(zip(narrow, wide, strict=True))
    cut = [name for name in narrow if "…" in name]
    assert all(longer[name].startswith(name.partition(" …")[0]) for name in cut), "whole words are left out"
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_function(f"wide => String(({ROWS})().names.map(([name]) => name)) === wide", arg=",".join(wide))
    assert titles_of_rows(page, above=True) == wide
