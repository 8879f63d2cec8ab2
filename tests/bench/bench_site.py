"""`make bench ARGS=site`: the page without installation, as `make site` wrote it, from a plain file server."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from app_runs import chromium, tab
from bench_app import DRAG, WATCH
from processes import ROOT

SITE = ROOT / "build" / "site"
READY = """async () => {
  const first = (part) => document.querySelector(`#first ${part}`)
  while (!(first(".rl-slider")?.isReady() && first(".main-svg"))) await new Promise(requestAnimationFrame)
}"""


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def main() -> None:
    if not (SITE / "index.html").exists():
        sys.exit("there is no site: run `make site` first.")
    whole = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    with served(SITE.parent) as host, chromium() as browser:
        for width, height in ((1440, 900), (390, 844)):
            with tab(browser, viewport={"width": width, "height": height}) as page:
                sent: list[int] = []
                page.on("response", lambda answer, sent=sent: sent.append(int(answer.headers["content-length"])))
                start = time.perf_counter()
                page.goto(f"{host}/site/index.html")
                page.evaluate(READY)
                seconds = time.perf_counter() - start
                page.evaluate(WATCH, ["statistic"])
                drag = page.evaluate(DRAG, 3)
                frames = drag["frames"]
                print(
                    f"{width} pixels: draggable after {seconds:.2f} s and {sum(sent) / 1000:.0f} kB; then "
                    f"{min(drag['rates'].values()):.0f} redraws a second, a frame in {frames[len(frames) // 2]:.0f} ms "
                    f"(95th percentile {frames[int(0.95 * len(frames))]:.0f} ms)",
                    flush=True,
                )
    print(f"the whole site: {whole / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
