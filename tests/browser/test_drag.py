"""A threshold that is dragged, in a real Chromium: what moves before it is let go."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_runs import make_run, serve, settled, visit, write_sketch
from playwright.sync_api import Locator, Page, Route, expect

pytestmark = pytest.mark.slow

# What a picture shows: left, top and right of bars that have a height, colours of cells, lines and what is on them.
SHOWN = r"""async (key) => {
  const box = document.querySelector(`.st-key-${key} .rl-picture`), all = (css) => [...box.querySelectorAll(css)]
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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_sketch(make_run(folder, "alpha", steps=1, sequences=32, width=24))
    return folder


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with serve(root) as address:
        yield address


def thumb(page: Page) -> Locator:
    """Of the threshold; the gradient view has another slider."""
    return page.locator("input[data-generation]")


def hold(page: Page, share: float) -> None:
    """Press the mouse on the thumb, pull it to this share of the slider's width, and keep it pressed."""
    box = thumb(page).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=8)


def texts(page: Page) -> list[str]:
    return [*page.get_by_test_id("stMetricValue").all_inner_texts(), page.locator(".st-key-explained").inner_text()]


def quiet(page: Page) -> None:
    """Wait until the last question has been answered, and drawn."""
    page.locator("input[type=range]").evaluate_all("""async (inputs) => {
      const frame = () => new Promise(requestAnimationFrame)
      do await frame()
      while (inputs.some((input) => input.asking || input.moved))
      await frame()
    }""")


@pytest.mark.parametrize(
    ("preset", "moving"),
    [
        ("decoupled_token_is", ("weights", "mask")),
        ("decoupled_token_icepop", ("weights", "mask")),
        ("decoupled_geo_rs_token_tis", ("weights", "statistic", "mask")),
        ("decoupled_k3_rs_token_tis", ("weights", "statistic", "mask")),
    ],
)
def test_a_sketch_is_what_plotly_draws_when_the_thumb_rests(
    page: Page, url: str, preset: str, moving: tuple[str, ...]
) -> None:
    """No run of the page until the mouse is released; after it every bar, cell, line and number is where it was."""
    visit(page, f"{url}/bench?preset={preset}")
    before = {key: page.evaluate(SHOWN, key) for key in moving}
    hold(page, 0.35)
    quiet(page)
    sketched, said = {key: page.evaluate(SHOWN, key) for key in moving}, texts(page)
    assert {key for key in moving if sketched[key]["sketched"]} >= {"weights", "mask"}
    assert sketched["mask"]["cells"] != before["mask"]["cells"]
    assert "is_upper" not in page.url
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    page.wait_for_function("document.querySelector('.st-key-weights .rl-picture').sketched === false")
    settled(page)
    drawn = {key: page.evaluate(SHOWN, key) for key in moving}
    assert texts(page) == said
    for key in moving:
        assert drawn[key] == sketched[key] | {"sketched": False}


def test_a_held_threshold_runs_nothing_but_its_answer(page: Page, url: str) -> None:
    """No frame goes to Streamlit while the thumb moves; only questions to the address, each for another value."""
    sent, asked = [], []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    page.on("request", lambda request: asked.append(request.url) if "/moved/" in request.url else None)
    visit(page, f"{url}/bench?preset=decoupled_token_is")
    page.wait_for_timeout(2500)  # past the first look for new runs
    hold(page, 0.5)
    frames = len(sent)
    for share in (0.45, 0.4, 0.5):
        box = page.get_by_role("slider").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 5, steps=4)
    quiet(page)
    assert len(set(asked)) >= 3
    assert len(sent) - frames <= 1  # the page looks for new runs every two seconds


# What the marked bar of the ranking is called.
RANKED = "document.querySelector('.st-key-ranking .rl-picture')._fullLayout.annotations[0].y"


def test_the_gradient_follows_the_thumb(page: Page, url: str) -> None:
    visit(page, f"{url}/gradient?preset=decoupled_token_is")
    values = page.get_by_test_id("stMetricValue")
    before, lines = values.all_inner_texts(), page.evaluate(SHOWN, "gradient_curves")["lines"]
    hold(page, 0.3)
    quiet(page)
    held = values.all_inner_texts()
    assert held != before
    assert page.evaluate(SHOWN, "gradient_curves")["lines"] != lines
    assert page.evaluate(RANKED) == "decoupled_token_is, changed"
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    settled(page)
    assert values.all_inner_texts() == held


def test_another_batch_size_moves_the_gradient_and_stays_in_the_link(page: Page, url: str) -> None:
    visit(page, f"{url}/gradient?preset=decoupled_token_is")
    before, ranked = by_label(page), page.evaluate(SHOWN, "ranking")["bars"]
    page.get_by_role("slider", name="Answers in a batch (B)").press("ArrowRight")
    page.wait_for_url("**answers=512**")
    expect(page.locator(".st-key-numbers").get_by_test_id("stMetricValue").nth(2)).not_to_have_text(before["Noise"][0])
    settled(page)
    after = by_label(page)
    assert (after["Bias"], after["Cosine"]) == (before["Bias"], before["Cosine"])
    assert page.evaluate(SHOWN, "ranking")["bars"] != ranked
    page.reload()
    page.wait_for_selector(".rl-picture .main-svg")
    settled(page)
    assert by_label(page) == after


def test_the_gradient_follows_the_batch_size_where_the_slider_comes_late(page: Page, url: str) -> None:
    """Streamlit's code of its sliders is held back until everything else is there."""
    held: list[Route] = []
    page.route(re.compile(r"/Slider\."), lambda route: held.append(route))
    page.goto(f"{url}/gradient?preset=decoupled_token_is")
    expect(page.get_by_text("Progress (η)").first).to_be_visible()
    for route in held:
        route.continue_()
    assert held
    expect(page.get_by_role("slider", name="Answers in a batch (B)")).to_be_visible()
    settled(page)
    expect(page.get_by_text("BidiComponent Error")).to_have_count(0)


def test_the_gradient_follows_the_batch_size(page: Page, url: str) -> None:
    """While the thumb is held; the page runs, and the link changes, once it is let go."""
    visit(page, f"{url}/gradient?preset=decoupled_token_is")
    before, ranked = by_label(page), page.evaluate(SHOWN, "ranking")["bars"]
    box = page.get_by_role("slider", name="Answers in a batch (B)").bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 200, middle[1], steps=8)
    quiet(page)
    held = by_label(page)
    assert held["Progress (η)"] != before["Progress (η)"]
    assert (held["Bias"], held["Cosine"]) == (before["Bias"], before["Cosine"])
    assert page.evaluate(SHOWN, "ranking")["bars"] != ranked
    assert "answers=" not in page.url
    page.mouse.up()
    page.wait_for_url("**answers=*")
    settled(page)
    assert by_label(page) == held


# A headline that no answer knows of, before all others: as where another page's are still being replaced.
STRANGER = """() => {
  const numbers = document.querySelector(".st-key-numbers"), stranger = numbers.firstElementChild.cloneNode(true)
  stranger.querySelector('[data-testid="stMetricLabel"] p').textContent = "Stranger"
  stranger.id = "stranger"
  numbers.prepend(stranger)
}"""


def by_label(page: Page) -> dict[str, list[str]]:
    """Headlines: what each shows, and its interval."""
    return {
        metric.get_by_test_id("stMetricLabel").inner_text(): [
            metric.get_by_test_id("stMetricValue").inner_text(),
            metric.get_by_test_id("stMetricDelta").inner_text(),
        ]
        for metric in page.locator(".st-key-numbers").get_by_test_id("stMetric").all()
    }


def test_a_number_is_written_under_its_label(page: Page, url: str) -> None:
    """An answer once wrote a number under its neighbour's name, where the page had other numbers than it expected."""
    visit(page, f"{url}/gradient?preset=decoupled_token_is")
    before = by_label(page)
    page.evaluate(STRANGER)
    hold(page, 0.3)
    quiet(page)
    held = by_label(page)
    assert held.pop("Stranger") == before["Progress (η)"]
    assert held["Noise"] != before["Noise"]
    page.evaluate("document.getElementById('stranger').remove()")
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    settled(page)
    page.reload()
    page.wait_for_selector(".rl-picture .main-svg")
    settled(page)
    assert by_label(page) == held


def test_without_an_answer_the_page_runs_while_the_thumb_moves(page: Page, url: str) -> None:
    """As after a restart of the server, which knows nothing of the page's address. A thumb that is held still asks for
    nothing more."""
    visit(page, f"{url}/bench?preset=decoupled_token_is")
    asked = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=404, body="This page is no longer open.")

    page.route("**/moved/**", refuse)
    before = texts(page)
    hold(page, 0.3)
    expect(page.get_by_test_id("stMetricValue").nth(3)).not_to_have_text(before[3])
    assert "is_upper" not in page.url
    quiet(page)
    page.wait_for_timeout(500)
    questions = len(asked)
    page.wait_for_timeout(1000)
    assert len(asked) == questions
    page.mouse.up()
    page.wait_for_url("**is_upper=**")


def test_what_is_pressed_right_after_a_drag_finds_the_new_threshold(page: Page, url: str) -> None:
    """The page has not run yet when the link is pressed; pressing makes it run, before the link is let go. (Streamlit
    drops what a page said last where another page is asked for before a run could begin, by a click of no length.)"""
    visit(page, f"{url}/bench?preset=decoupled_token_is")
    slider = page.get_by_label("Upper bound of the weight")
    slider.focus()
    slider.press("PageDown")
    page.get_by_role("link", name="Mismatch", exact=True).first.hover()
    page.mouse.down()
    page.wait_for_url("**is_upper=**")
    page.mouse.up()
    page.wait_for_url("**/mismatch**")
    settled(page)
    page.get_by_role("link", name="Correction bench").first.click()
    page.wait_for_url("**is_upper=**")


# As an answer does that React knows nothing of: over a number, and over the pictures.
OVERWRITE = """(figures) => {
  let node = document.querySelectorAll(".st-key-numbers [data-testid=stMetricValue]")[3]
  while (node.lastChild) node = node.lastChild
  node.nodeValue = "overwritten"
  for (const key of ["weights", "mask"]) document.querySelector(`.st-key-${key} .rl-picture`).redraw(figures[key])
}"""


def test_a_run_of_the_page_takes_back_what_an_answer_wrote(page: Page, url: str, root: Path) -> None:
    """Also where the run shows what React showed last, and nothing is new to it: as when Back is pressed so soon that
    the bound before it was never shown."""
    answers = []
    page.on("response", lambda got: answers.append(got) if "/moved/" in got.url else None)
    visit(page, f"{url}/bench?preset=decoupled_token_is&run=alpha")
    hold(page, 0.35)
    quiet(page)
    figures = answers[-1].json()["figures"]
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
    page.get_by_role("button", name="Reset to the preset's numbers").click()
    page.wait_for_url(lambda address: "is_upper" not in address)
    settled(page)
    said, drawn = texts(page), {key: page.evaluate(SHOWN, key) for key in ("weights", "mask")}
    page.evaluate(OVERWRITE, figures)
    assert texts(page)[3] == "overwritten"
    assert all(page.evaluate(SHOWN, key) != shown for key, shown in drawn.items())
    make_run(root / "local", "beta", steps=1)
    expect(page.get_by_text("A new run has appeared: beta.")).to_be_visible()
    settled(page)
    assert texts(page) == said
    assert {key: page.evaluate(SHOWN, key) for key in drawn} == drawn


def test_a_held_thumb_keeps_its_pictures_when_the_page_runs(page: Page, url: str, root: Path) -> None:
    visit(page, f"{url}/bench?preset=decoupled_token_is&run=alpha")
    before = texts(page)
    hold(page, 0.35)
    quiet(page)
    said, bars = texts(page), page.evaluate(SHOWN, "weights")["bars"]
    assert said != before
    with page.expect_request("**/moved/**"):
        make_run(root / "local", "gamma", steps=1)
    expect(page.get_by_text("A new run has appeared: gamma.")).to_be_visible()
    settled(page)
    quiet(page)
    assert texts(page) == said
    assert page.evaluate(SHOWN, "weights")["bars"] == bars
    page.mouse.up()
    page.wait_for_url("**is_upper=**")
