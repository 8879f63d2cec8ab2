"""`make bench ARGS=sessions`: many people drag a threshold of the bench at once, over HTTP and Streamlit's protocol.

A browser for each of thirty would measure browsers. So each session here is what a browser sends and receives: the
page's address; then the strip of its slider; then nothing, while the thumb is pulled for three seconds; and a run of
the page when it is let go. Beside that it is measured what the server does while all thumbs are held.
"""

import asyncio
import os
import statistics
import tempfile
from pathlib import Path

from app_runs import make_run, serve
from dragging import PATIENCE, PULL, opened, strip_of, together
from httpx import AsyncClient

SESSIONS, SECONDS, HELD = 30, 60.0, 10.0


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


def cpu_seconds(pattern: str) -> float:
    """That the server has used."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if pattern in (path / "cmdline").read_text().replace("\0", " "):
                user, system = (path / "stat").read_text().rpartition(")")[2].split()[11:13]
                return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        except FileNotFoundError:
            continue
    raise RuntimeError("the server has gone")


async def held(url: str, sessions: int, port: str) -> float:
    """CPU seconds of the server per second while so many hold their thumbs, and everything has come."""
    async with AsyncClient(timeout=PATIENCE) as http:
        pages = await asyncio.gather(*(opened(url, http) for _ in range(sessions)))
        await asyncio.gather(*(strip_of(page) for page in pages))
        await asyncio.sleep(PULL)
        before = cpu_seconds(port)
        await asyncio.sleep(HELD)
        used = cpu_seconds(port) - before
        await asyncio.gather(*(page.socket.close() for page in pages))
    return used / HELD


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_run(root, "131k", steps=1, sequences=210, width=1024, noise=0.05)
        with serve(root) as url:
            port = f"--server.port {url.rsplit(':', 1)[1]}"
            print(
                "| sessions that drag | CPU of the server while they do | strip: median | 95th percentile "
                "| run of the page when let go: median | 95th percentile | memory of the server |"
            )
            print("|---|---|---|---|---|---|---|")
            for sessions, seconds in ((1, 10.0), (SESSIONS, float(os.environ.get("SECONDS", SECONDS)))):
                share = asyncio.run(held(url, sessions, port))
                times = asyncio.run(together(url, sessions, seconds))
                parts = (f"{ms(times.strips)} | {ms(times.runs)}", f"{megabytes(port):.0f} MiB")
                print(f"| {sessions} | {share:.1%} | {' | '.join(parts)} |", flush=True)


def ms(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{1000 * statistics.median(ordered):.0f} ms | {1000 * ordered[int(0.95 * (len(ordered) - 1))]:.0f} ms"


if __name__ == "__main__":
    main()
