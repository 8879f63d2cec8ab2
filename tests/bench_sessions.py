"""`make bench ARGS=sessions`: many people drag a threshold of the bench at once, over HTTP and Streamlit's protocol.

A browser for each of thirty would measure browsers. So each session here is what a browser sends and receives: the
page's address; then a new value as soon as the last one has been answered, at most every 40 ms, and later where an
answer takes long; and after three seconds the thumb is let go, which runs the page, and pulled again.
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from app_runs import make_run, serve
from httpx import AsyncClient
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

SESSIONS, SECONDS, GAP, BUSY, PULL = 30, 60.0, 0.04, 0.2, 3.0
PATIENCE = 60.0
"""Seconds: an answer that takes longer has been lost."""
ADDRESS = "preset=decoupled_token_is"


@dataclass(frozen=True)
class Opened:
    """A page that has been drawn, and where its slider is."""

    socket: ClientConnection
    page: str
    fragment: str
    slider: str
    address: str


def received(raw: str | bytes) -> ForwardMsg:
    """Raises RuntimeError for what the page would show as an exception."""
    assert isinstance(raw, bytes)
    got = ForwardMsg.FromString(raw)
    if got.HasField("delta") and got.delta.new_element.HasField("exception"):
        raise RuntimeError(got.delta.new_element.exception.message)
    return got


async def opened(url: str) -> Opened:
    socket = await connect(
        f"{url.replace('http', 'ws')}/_stcore/stream", subprotocols=[Subprotocol("streamlit")], max_size=None
    )
    message = BackMsg()
    message.rerun_script.query_string = ADDRESS
    message.rerun_script.page_name = "bench"
    await socket.send(message.SerializeToString())
    page = fragment = slider = address = ""
    async for raw in socket:
        got = received(raw)
        if got.HasField("new_session"):
            page = got.new_session.page_script_hash
        if got.HasField("delta") and got.delta.new_element.HasField("bidi_component"):
            found = got.delta.new_element.bidi_component.id
            if found.endswith("-live_is_upper"):
                fragment, slider = got.delta.fragment_id, found
                address = json.loads(got.delta.new_element.bidi_component.json)["address"]
        if got.HasField("script_finished"):
            assert slider, "the page has no live slider"
            return Opened(socket, page, fragment, slider, f"{url}/{address}")
    raise RuntimeError("the server closed the connection")


async def asked(http: AsyncClient, of: Opened, value: float) -> float:
    """Seconds until a new value has been answered."""
    start = time.perf_counter()
    got = await http.get(of.address, params={"at": value})
    assert got.json()["figures"]
    return time.perf_counter() - start


async def let_go(of: Opened, value: float) -> float:
    """Seconds until the page has run."""
    message = BackMsg()
    rerun = message.rerun_script
    rerun.page_script_hash, rerun.fragment_id = of.page, of.fragment
    rerun.widget_states.widgets.add(
        id=of.slider, json_value=json.dumps({"at": {"value": value, "token": 0, "done": True}})
    )
    start = time.perf_counter()
    await of.socket.send(message.SerializeToString())
    async for raw in of.socket:
        got = received(raw)
        if got.HasField("script_finished"):
            assert got.script_finished == ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY
            return time.perf_counter() - start
    raise RuntimeError("the server closed the connection")


@dataclass(frozen=True)
class Times:
    """Seconds of each answer, and of each run of the page."""

    answers: list[float]
    runs: list[float]


async def dragged(url: str, seconds: float, seed: int) -> Times:
    values, times = random.Random(seed), Times([], [])
    page = await opened(url)
    end = time.perf_counter() + seconds
    async with AsyncClient(timeout=PATIENCE) as http:
        while (start := time.perf_counter()) < end:
            value = 2.0
            while time.perf_counter() < min(start + PULL, end):
                value = round(1.001 + values.random() ** 3 * 5, 3)
                times.answers.append(await asked(http, page, value))
                took = times.answers[-1]
                await asyncio.sleep(max(0.0, GAP - took) if took < BUSY else took)
            times.runs.append(await let_go(page, value))
    await page.socket.close()
    return times


async def together(url: str, sessions: int, seconds: float) -> Times:
    each = await asyncio.gather(*(dragged(url, seconds, seed) for seed in range(sessions)))
    return Times([t for of in each for t in of.answers], [t for of in each for t in of.runs])


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
