"""A threshold that is dragged, in a real Chromium: what moves before it is let go."""

from app_runs import settled, visit
from playwright.sync_api import Page, Route, expect
from thumbs import another_preset, hold, quiet, strip_is_there, texts, thumb

# What a picture shows: left, top and right of bars that have a height, colours of cells, lines and what is on them.
SHOWN = r"""async (key) => {
  const box = document.querySelector(`[data-picture=${key}] .rl-picture`), all = (css) => [...box.querySelectorAll(css)]
  const barOf = (path) => {
    const [left, bottom, top, right] = path.getAttribute("d").match(/[\d.]+/g).map(Number)
    return top < box._fullLayout.yaxis._length ? [left, top, right] : []
  }
  const image = box.querySelector(".heatmaplayer image"), cells = new Image()
  if (image) {
    cells.src = image.href.baseVal
    await cells.decode()
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: cells.width || 1, height: cells.height || 1 })
  const pen = canvas.getContext("2d")
  pen.drawImage(cells, 0, 0)
  return {
    bars: all(".barlayer path").map(barOf),
    cells: [canvas.width, ...pen.getImageData(0, 0, canvas.width, canvas.height).data],
    lines: all(".shapelayer path").map((path) => path.getAttribute("d")),
    labels: all(".shapelayer text").map((text) => text.textContent),
    sketched: box.sketched === true,
  }
}"""


STRIPS = {
    "decoupled_geo_rs_token_tis": ("weights", "statistic", "mask"),
    "trl_opsm": ("statistic", "mask"),  # its only bound is a lower one
}
"""Preset whose strip is dragged → the pictures that move."""


def test_a_held_threshold_runs_nothing_and_shows_what_plotly_draws_when_the_thumb_rests(page: Page, url: str) -> None:
    """With one preset after the other; while the first is held, the page itself runs, as a box is opened."""
    sent: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    for preset, moving in STRIPS.items():
        if page.url == "about:blank":
            visit(page, f"{url}/bench?run=sketched&preset={preset}")
        else:
            another_preset(page, preset)
        strip_is_there(page)
        before, said = {key: page.evaluate(SHOWN, key) for key in moving}, texts(page)
        if preset == next(iter(STRIPS)):
            runs_nothing(page, sent)
            assert texts(page) != said
            keeps_its_pictures_when_the_page_runs(page)
        else:
            hold(page, 0.35)
            quiet(page)
        is_what_plotly_draws(page, preset, moving, before)


def is_what_plotly_draws(page: Page, preset: str, moving: tuple[str, ...], before: dict[str, dict]) -> None:
    """Let the thumb go: the page had not run until then, and every bar, cell, line and number stays where it was."""
    address = page.url
    sketched, said = {key: page.evaluate(SHOWN, key) for key in moving}, texts(page)
    assert {key for key in moving if sketched[key]["sketched"]} >= {moving[0], "mask"}, preset
    assert sketched["mask"]["cells"] != before["mask"]["cells"], preset
    assert "er=" not in address, preset
    page.mouse.up()
    page.wait_for_url("**er=**")  # is_upper, seq_mean_k3_upper, seq_mean_k1_negative_lower
    page.wait_for_function(f"document.querySelector('[data-picture={moving[0]}] .rl-picture').sketched === false")
    settled(page)
    drawn = {key: page.evaluate(SHOWN, key) for key in moving}
    assert texts(page) == said, preset
    for key in moving:
        assert drawn[key] == sketched[key] | {"sketched": False}, (preset, key)


def runs_nothing(page: Page, sent: list[object]) -> None:
    """Hold the thumb: while it moves, no frame goes to Streamlit, and there is no request at all."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hold(page, 0.5)
    frames = len(sent)
    for share in (0.45, 0.4, 0.35):
        box = thumb(page).bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 5, steps=4)
    quiet(page)
    assert asked == []
    assert len(sent) == frames


def keeps_its_pictures_when_the_page_runs(page: Page) -> None:
    """Open a box while the thumb is held: what the pictures and the numbers show of the held value stays."""
    said, bars = texts(page), page.evaluate(SHOWN, "weights")["bars"]
    page.locator(".st-key-use_it summary").evaluate("summary => summary.click()")
    expect(page.locator(".st-key-use_it code").first).to_be_attached()
    settled(page)
    quiet(page)
    assert texts(page) == said
    assert page.evaluate(SHOWN, "weights")["bars"] == bars


# Where the line of the present thresholds and its band lie over the bars.
OVER_BARS = """document.querySelector("[data-picture=ranking] .rl-picture")
  ._fullLayout.shapes.map(({ x0, x1 }) => [x0, x1])"""


BARS = "() => [...document.querySelectorAll('[data-picture=ranking] .barlayer path')].map((p) => p.outerHTML).join()"
PULLABLE = "(key) => document.querySelector(`[data-picture=${key}] .rl-picture`).pullable().length"


def test_the_gradient_follows_the_thumb_and_the_batch_size_which_stays_in_the_link(page: Page, url: str) -> None:
    """Only a line that is a bound can be pulled, not the line over the bars, whose position is not one."""
    visit(page, f"{url}/gradient?run=sketched&preset=decoupled_token_is")
    strip_is_there(page)
    assert [page.evaluate(PULLABLE, key) for key in ("gradient_curves", "ranking")] == [1, 0]
    another_batch_size_stays(page)
    strip_is_there(page)  # of the new size
    follows_the_thumb(page)


def another_batch_size_stays(page: Page) -> None:
    """Choose it with the keyboard: bias and cosine do not depend on it, and a reload keeps it."""
    before, ranked = by_label(page), page.evaluate(BARS)
    page.get_by_role("slider", name="Answers in a batch (B)").press("ArrowRight")
    page.wait_for_url("**answers=512**")
    expect(page.locator("[data-number=Noise] b")).not_to_have_text(before["Noise"][0])
    settled(page)
    after = by_label(page)
    assert (after["Bias"], after["Cosine"]) == (before["Bias"], before["Cosine"])
    page.wait_for_function(f"before => ({BARS})() !== before", arg=ranked)  # it is drawn after the numbers
    page.reload()
    page.wait_for_selector(".rl-picture .main-svg")
    settled(page)
    assert by_label(page) == after


def follows_the_thumb(page: Page) -> None:
    values = page.locator(".rl-number b")
    before, lines = values.all_inner_texts(), page.evaluate(SHOWN, "gradient_curves")["lines"]
    over_bars = page.evaluate(OVER_BARS)
    hold(page, 0.3)
    quiet(page)
    held = values.all_inner_texts()
    assert held != before
    assert page.evaluate(SHOWN, "gradient_curves")["lines"] != lines
    assert page.evaluate(OVER_BARS) != over_bars
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    settled(page)
    assert values.all_inner_texts() == held


def by_label(page: Page) -> dict[str, list[str]]:
    """Headlines: what each shows, and its interval."""
    shown = (
        "all => all.map((e) => [e.dataset.number, e.querySelector('b').innerText, e.querySelector('small').innerText])"
    )
    return {label: texts for label, *texts in page.locator(".rl-number").evaluate_all(shown)}


def test_without_a_strip_the_page_follows_when_the_thumb_is_let_go(page: Page, url: str) -> None:
    """As after a restart of the server, which knows nothing of the page's address."""
    page.route("**/strips/**", lambda route: route.abort())
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    before = texts(page)
    hold(page, 0.3)
    quiet(page)
    assert texts(page) == before
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    settled(page)
    assert texts(page) != before


def test_a_strip_that_comes_while_the_thumb_is_held_draws_its_place(page: Page, url: str) -> None:
    strips: list[Route] = []
    page.route("**/strips/**", lambda route: strips.append(route))
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    before = texts(page)
    hold(page, 0.3)
    strips.pop().continue_()
    strip_is_there(page)
    quiet(page)
    held = texts(page)
    assert held != before
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    settled(page)
    assert texts(page) == held


def test_what_is_pressed_right_after_a_drag_finds_the_new_threshold(page: Page, url: str) -> None:
    """The page has not run yet when the link is pressed; pressing makes it run, before the link is let go. (Streamlit
    drops what a page said last where another page is asked for before a run could begin, by a click of no length.)"""
    visit(page, f"{url}/bench?run=sketched&preset=decoupled_token_is")
    slider = page.get_by_role("slider", name="Largest weight")
    slider.focus()
    slider.press("PageDown")
    page.get_by_role("link", name="Mismatch", exact=True).first.hover()
    page.mouse.down()
    page.wait_for_url("**is_upper=**")
    page.mouse.up()
    page.wait_for_url("**view=mismatch**")
    settled(page)
    page.get_by_role("link", name="Correction bench").first.click()
    page.wait_for_url("**is_upper=**")
