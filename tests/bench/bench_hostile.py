"""`make bench ARGS=hostile`: one visitor asks for the most expensive things in four tabs; how long do two others wait?

Each tab asks again as soon as it is answered, for one kind of thing at a time. The others load the bench of a small
run again and again, over the browser's protocol.
"""

import asyncio
import io
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
from app_runs import make_run, serve
from bench_sessions import megabytes
from dragging import PATIENCE
from httpx import AsyncClient
from visitor import visiting

TABS, OTHERS = 4, 2
SECONDS = float(os.environ.get("SECONDS", "45"))
PRESETS = ("decoupled_token_is", "decoupled_seq_is", "decoupled_k3_rs_token_tis", "slime_mis")


def file_of(answers: int, tokens: int, seed: int) -> bytes:
    """Return a Parquet file of four million tokens, the most that is read."""
    chance, written = Random(seed), io.BytesIO()
    sides = {side: [[-chance.random()] * tokens] * answers for side in ("rollout_log_probs", "old_log_probs")}
    pq.write_table(pa.table(sides), written)
    return written.getvalue()


async def strips(url: str, tab: int, http: AsyncClient, number: int) -> None:
    """Open the largest run with another correction, and ask for its strip five times at once."""
    preset = PRESETS[(tab + number) % len(PRESETS)]
    visitor = await visiting(url, http, "bench", f"run=large&preset={preset}&is_upper={2 + number / 100 + tab}")
    await asyncio.gather(*(http.get(f"{url}/{visitor.slider['strip']}") for _ in range(5)))
    await visitor.socket.close()


async def bootstraps(url: str, tab: int, http: AsyncClient, number: int) -> None:
    """Open the mismatch of many answers."""
    await (await visiting(url, http, "mismatch", f"run=many_{(tab + number) % TABS}")).socket.close()


async def uploads(url: str, tab: int, http: AsyncClient, number: int) -> None:
    """Drop a file that this visitor has not dropped before."""
    visitor = await visiting(url, http)
    await visitor.drop((f"{number}.parquet", FILES[tab % len(FILES)]))
    await visitor.socket.close()


FILES = [file_of(1 << 18, 16, 1), file_of(1, 1 << 22, 2)]
Kind = Callable[[str, int, AsyncClient, int], Awaitable[None]]
KINDS: dict[str, Kind | None] = {"nothing": None, "strips": strips, "bootstraps": bootstraps, "uploads": uploads}


async def again(times: list[float], once: Callable[[AsyncClient, int], Awaitable[None]]) -> None:
    """Do something again and again until this is cancelled, and add the seconds of each time, the last one included."""
    async with AsyncClient(timeout=20 * PATIENCE) as http:
        while True:
            start = time.perf_counter()
            try:
                await once(http, len(times))
            finally:
                times.append(time.perf_counter() - start)


async def measured(url: str, kind: Kind | None) -> str:
    """Return a row of the table: how long the others waited while this was asked for."""

    async def load(http: AsyncClient, _: int) -> None:
        await (await visiting(url, http, "bench", "run=small")).socket.close()

    waits, asked = list[float](), list[float]()
    tabs = [again(asked, partial(kind, url, tab)) for tab in range(TABS)] if kind else []
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(again(waits, load) for _ in range(OTHERS)), *tabs), SECONDS)
    parts = statistics.median(waits), sorted(waits)[int(0.95 * (len(waits) - 1))], max(waits)
    return f"{len(asked)} | {' | '.join(f'{part:.2f} s' for part in parts)}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        many = {f"many_{number}": (1 << 14, 16) for number in range(TABS)}
        for run, (sequences, width) in {"small": (24, 64), "large": (1640, 1024), **many}.items():
            make_run(root, run, steps=1, sequences=sequences, width=width, noise=0.05)
        print("| asked for | times | others wait: median | 95th percentile | longest | memory of the server |")
        print("|---|---|---|---|---|---|")
        with serve(root) as url:
            asyncio.run(measured(url, None))  # the first pages of a server are slower
            for name, kind in KINDS.items():
                row = asyncio.run(measured(url, kind))
                memory = megabytes(f"--server.port {url.rsplit(':', 1)[1]}")
                print(f"| {name} | {row} | {memory:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
