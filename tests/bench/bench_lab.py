"""`make bench ARGS=lab`: how soon the Lab answers in a browser, and whether its page goes on moving meanwhile."""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from app_runs import chromium, make_run, serve, tab
from bench_sessions import cpu_seconds
from playwright.sync_api import Page

TIMES = 5
# Moves the handle of the age by one place, and returns milliseconds until the first curves of both arms are drawn and
# until all thresholds are trained, and between two redraws meanwhile.
MOVED = """async (name) => {
  const { lab } = document.querySelector(".rl-lab").parentElement, slider = lab.sliders.lag.input
  const drawn = [], start = performance.now()
  let first
  slider.value = Number(slider.value) + (name === "on" ? 1 : -1)
  slider.dispatchEvent(new Event("input"))
  const isOf = ([key, curves]) => JSON.parse(key)[0].lag === lab.settings.lag
  const count = () => [...lab.trained].filter(isOf).length
  while (count() < 8 * 26 - 8) {  // 24 thresholds and no correction, of which the chosen one is among the 24
    await new Promise(requestAnimationFrame)
    drawn.push(performance.now())
    if (!first && count() >= 2) first = performance.now() - start
  }
  const gaps = drawn.slice(1).map((at, k) => at - drawn[k])
  return { first, all: performance.now() - start, gaps }
}"""


def moved(page: Page, name: str) -> dict[str, Any]:
    result = page.evaluate(MOVED, name)
    page.evaluate("document.querySelector('.rl-lab').parentElement.lab.trained.clear()")
    return result


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_run(root, "one", steps=1)
        with (
            serve(root) as url,
            chromium() as browser,
            tab(browser, viewport={"width": 1440, "height": 900}) as page,
        ):
            page.goto(f"{url}/?view=lab")
            page.wait_for_function("document.querySelector('.rl-lab-title')?.textContent.includes('ends at')")
            port = url.rpartition(":")[2]
            before = cpu_seconds(port)
            rows = [moved(page, ("on", "back")[number % 2]) for number in range(TIMES)]
            used = cpu_seconds(port) - before
    gaps = sorted(gap for row in rows for gap in row["gaps"])
    seconds = {key: statistics.median(row[key] for row in rows) / 1000 for key in ("first", "all")}
    print("| first curves | 24 thresholds × 8 seeds | redraws a second | longest 1 % of the gaps | server |")
    print("|---|---|---|---|---|")
    rate, longest = 1000 / statistics.median(gaps), gaps[int(0.99 * len(gaps))]
    print(f"| {seconds['first']:.2f} s | {seconds['all']:.1f} s | {rate:.0f} | {longest:.0f} ms | {used:.1f} cpu s |")
