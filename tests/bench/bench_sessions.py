"""`make bench ARGS=sessions`: many people drag a threshold of the bench at once, over HTTP and Streamlit's protocol.

A browser for each of thirty would measure browsers. So each session here is what a browser sends and receives: the
page's address; then a new value as soon as the last one has been answered, at most every 40 ms, and later where an
answer takes long; and after three seconds the thumb is let go, which runs the page, and pulled again.
"""

import asyncio
import os
import statistics
import tempfile
from pathlib import Path

from app_runs import make_run, serve
from dragging import (
    together,
)

SESSIONS, SECONDS = 30, 60.0


def megabytes(pattern: str) -> float:
    """Private memory of the server, resident or swapped."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if pattern in (path / "cmdline").read_text().replace("\0", " "):
                rows = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines() if ":" in line)
                return sum(int(rows[name].split()[0]) for name in ("RssAnon", "VmSwap")) / 1024
        except FileNotFoundError:
            continue
    raise RuntimeError("the server has gone")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_run(root, "131k", steps=1, sequences=210, width=1024, noise=0.05)
        with serve(root) as url:
            port = f"--server.port {url.rsplit(':', 1)[1]}"
            print(
                "| sessions that drag | answers per second of all | median | 95th percentile "
                "| run of the page when let go: median | 95th percentile | memory of the server |"
            )
            print("|---|---|---|---|---|---|---|")
            for sessions, seconds in ((1, 10.0), (SESSIONS, float(os.environ.get("SECONDS", SECONDS)))):
                times = asyncio.run(together(url, sessions, seconds))
                parts = (f"{ms(times.answers)} | {ms(times.runs)}", f"{megabytes(port):.0f} MiB")
                print(f"| {sessions} | {len(times.answers) / seconds:.1f} | {' | '.join(parts)} |", flush=True)


def ms(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{1000 * statistics.median(ordered):.0f} ms | {1000 * ordered[int(0.95 * (len(ordered) - 1))]:.0f} ms"


if __name__ == "__main__":
    main()
