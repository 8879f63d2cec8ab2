"""Measure the app in a real browser: `python tests/bench_app.py` prints slider-to-repaint times on 100 k tokens."""

import statistics
import tempfile
from pathlib import Path

from app_runs import browser, make_run, serve, settled

# From the input event to the frame in which the histogram and the mask have both been redrawn.
MEASURE = """async (position) => {
  const all = (node, css) => [...node.querySelectorAll("*")].flatMap(
    (n) => [...(n.matches(css) ? [n] : []), ...(n.shadowRoot ? all(n.shadowRoot, css) : [])])
  const slider = all(document, "input[type=range]")[0]
  const drawn = (key) => new Promise((done) =>
    document.querySelector(`.st-key-${key} .js-plotly-plot`).once("plotly_afterplot", done))
  const redrawn = Promise.all([drawn("weights"), drawn("mask")])
  const start = performance.now()
  slider.value = position
  slider.dispatchEvent(new Event("input", { bubbles: true }))
  await redrawn
  await new Promise(requestAnimationFrame)
  return performance.now() - start
}"""


def main(steps: int = 40) -> None:
    """Build the run, drag through `steps` positions, print median, 95th percentile and largest time."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_run(root, "big", steps=1, sequences=160, width=1024, noise=0.05)
        with serve(root) as url, browser() as page:
            for preset in ("decoupled_token_is", "decoupled_token_icepop", "decoupled_k3_rs_token_tis"):
                page.goto(f"{url}/bench?preset={preset}")
                page.wait_for_selector(".st-key-weights .js-plotly-plot .main-svg")
                settled(page)
                times = sorted(page.evaluate(MEASURE, 150 + 7 * i) for i in range(steps))
                p95 = times[int(0.95 * (steps - 1))]
                middle = statistics.median(times)
                print(f"{preset:28s} median {middle:4.0f} ms  p95 {p95:4.0f} ms  largest {times[-1]:4.0f} ms")


if __name__ == "__main__":
    main()
