"""`make bench ARGS=app`: the playground in a real browser: what a page shows and loads, and how quickly it redraws."""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from app_runs import PROJECT, chromium, make_run, serve, settled, tab, write_sketch
from page_measures import SHARE, SHIFTS
from playwright.sync_api import Browser, Page

from rlcorr.records import runs

WIDTH = 1024
SIZES = {"131k": 210, "1M": 1640}
"""Run → sequences, whose lengths are between a quarter of the width and the whole."""
BENCH = ("weights", "mask", "shares_over", "mismatch_over")
VIEWS = {
    "bench, decoupled_token_is": ("bench?preset=decoupled_token_is", BENCH),
    "bench, decoupled_token_icepop": ("bench?preset=decoupled_token_icepop", BENCH),
    "gradient, decoupled_token_is": ("gradient?preset=decoupled_token_is", ("gradient_curves", "ranking")),
}
"""What is measured → its address, and the pictures that move with the first bound."""

# Each picture's redrawings are counted, and timed from the last press of a key to the frame that shows them.
WATCH = """keys => {
  const box = (key) => document.querySelector(`[data-picture=${key}] .js-plotly-plot`)
  window.pictures = keys.map((key) => ({ key, box: box(key), times: 0 }))
  for (const picture of pictures) {
    new MutationObserver(() => { picture.times += 1; picture.at = performance.now() })
      .observe(picture.box, { subtree: true, childList: true, attributes: true })
  }
  addEventListener("keydown", () => { window.pressed = performance.now() }, { capture: true })
}"""
DRAWN = """async () => {
  while (!pictures.every(({ at }) => at > pressed)) await new Promise(requestAnimationFrame)
  await new Promise(requestAnimationFrame)
  return performance.now() - pressed
}"""
# A thumb that moves with every frame, to and fro, for some seconds; how often each picture was redrawn in a second, and
# how many milliseconds lay between two frames, once the slider has its strip.
DRAG = """async (seconds) => {
  const [slider] = document.querySelectorAll(".rl-slider"), input = slider.querySelector("input")
  const move = (position, event) => {
    input.value = position
    input.dispatchEvent(new Event(event, { bubbles: true }))
  }
  const frame = () => new Promise(requestAnimationFrame)
  while (!slider.isReady()) await frame()
  for (const picture of pictures) picture.times = 0
  const start = performance.now(), frames = [], top = Number(input.max)
  let last = start
  for (let at = 0; performance.now() - start < 1000 * seconds; at += 2) {
    move(Math.round(top * (1 / 6 + Math.abs((at % 800) - 400) / 600)), "input")
    await frame()
    frames.push(performance.now() - last)
    last = performance.now()
  }
  const rates = Object.fromEntries(pictures.map(({ key, times }) => [key, times / seconds]))
  move(Math.round(top / 2), "change")
  return { rates, frames: frames.sort((a, b) => a - b) }
}"""


WITHOUT_PICTURES = ("tokens", "learn", "training&part=Train")
TYPE = """() => {
  const all = new Set(), texts = document.createTreeWalker(document.querySelector(".stMain"), NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const { parentElement: element, textContent: text } = texts.currentNode
    if (text.trim() && element.checkVisibility() && !element.closest("style, .katex")) {
      all.add(parseFloat(getComputedStyle(element).fontSize))
    }
  }
  return [...all].sort((a, b) => b - a)
}"""


def main(steps: int = 60) -> None:
    pages()
    redraws(steps)


def pages() -> None:
    """Print a row per page of the recorded runs: what a first visit with an empty cache loads and shows."""
    sys.path.insert(0, str(PROJECT / "app"))
    from text.pages import PAGES

    print("\n| page | pictures, 1440×900 | on a projector, 1280×720 | type, px | layout shift | kB | requests |")
    print("|---|---|---|---|---|---|---|")
    views = [*PAGES, "training&part=Study", "training&part=Train"]
    with serve(PROJECT / "runs") as url, chromium() as browser:
        for view in views:
            print(page_row(browser, f"{url}/?view={view}", view), flush=True)


def page_row(browser: Browser, address: str, view: str) -> str:
    """Wait for the page's pictures, its script and half a second without a request."""
    with tab(browser, viewport={"width": 1440, "height": 900}) as page:
        loaded: list[float] = []
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        network.on("Network.loadingFinished", lambda event: loaded.append(event["encodedDataLength"]))
        page.add_init_script(f"({SHIFTS})()")
        complete(page, address)
        size, requests = sum(loaded) / 1000, len(loaded)
        shift = page.evaluate("shifts.reduce((sum, one) => sum + one, 0)")
        wide, sizes = page.evaluate(SHARE), page.evaluate(TYPE)
        page.set_viewport_size({"width": 1280, "height": 720})
        complete(page, f"{address}&projector=1")
        projected = page.evaluate(SHARE)
    written = ", ".join(f"{value:g}" for value in sizes)
    return f"| {view} | {wide:.0%} | {projected:.0%} | {written} | {shift:.3f} | {size:,.0f} | {requests} |"


def complete(page: Page, address: str) -> None:
    page.goto(address)
    if not address.partition("view=")[2].startswith(WITHOUT_PICTURES):
        page.wait_for_selector(".rl-picture .main-svg")
    settled(page)
    page.wait_for_load_state("networkidle")
    page.wait_for_function(
        "[...document.querySelectorAll('.rl-picture')].every((one) => one.querySelector('.main-svg'))"
    )


def redraws(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, sequences in SIZES.items():
            write_sketch(make_run(root, name, steps=1, sequences=sequences, width=WIDTH, noise=0.05))
        with serve(root) as url, chromium() as browser, tab(browser, viewport={"width": 1440, "height": 900}) as page:
            page.set_default_timeout(120_000)
            for name in SIZES:
                tokens = int(runs.read_step(root / name, 0).batch.response_mask.sum())
                print(f"\n{tokens:,} tokens. From the moved slider to the last of its pictures, milliseconds:\n")
                print(
                    "| view | median | 95th percentile | largest | redrawn per second while dragging "
                    "| frame: median | 95th percentile | warm page |"
                )
                print("|---|---|---|---|---|---|---|---|")
                for what, (address, keys) in VIEWS.items():
                    print(row(page, what, f"{url}/{address}&run={name}", keys, steps), flush=True)
                print(f"\nThis machine now adds ten million times in {loop():.2f} s.", flush=True)


def loop() -> float:
    """Seconds of work that is always the same: shared machines are not always as quick."""
    start, total = time.perf_counter(), 0
    for i in range(10_000_000):
        total += i
    return time.perf_counter() - start


def row(page: Page, what: str, address: str, keys: Sequence[str], steps: int) -> str:
    for _ in range(2):  # the second time is the warm one
        start = time.perf_counter()
        page.goto(address)
        for key in keys:
            page.wait_for_selector(f"[data-picture={key}] .js-plotly-plot .main-svg")
        seconds = time.perf_counter() - start
        settled(page)
    page.evaluate(WATCH, list(keys))
    page.locator(".rl-slider input").first.focus()
    pauses = random.Random(0)
    times = sorted(pressed(page, "PageDown" if i % 6 < 3 else "PageUp", pauses) for i in range(steps))
    drag = page.evaluate(DRAG, 5)
    rates, frames = drag["rates"], drag["frames"]
    slowest = min(rates, key=rates.get)
    return (
        f"| {what} | {statistics.median(times):.0f} | {times[int(0.95 * (steps - 1))]:.0f} | {times[-1]:.0f} "
        f"| {rates[slowest]:.1f} ({slowest}) to {max(rates.values()):.1f} "
        f"| {statistics.median(frames):.0f} | {frames[int(0.95 * (len(frames) - 1))]:.0f} | {seconds:.1f} s |"
    )


def pressed(page: Page, key: str, pauses: random.Random) -> float:
    """Milliseconds from a press to the last repainted picture; as quick and as slow as somebody who looks. The step
    before it makes the value one that no cache knows."""
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(pauses.uniform(50, 600))
    page.keyboard.press(key)
    return page.evaluate(DRAWN)


if __name__ == "__main__":
    main()
