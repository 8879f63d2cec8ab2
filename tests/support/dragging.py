"""Sessions that drag a threshold of the app, each over a connection of its own, without a browser.

A thumb that moves looks everything up in the strip of its slider, so that a session asks the server for two things: for
a strip, whenever the page offers another one, and for a run of the page when the thumb is let go.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass

from httpx import AsyncClient
from streamlit.proto.BackMsg_pb2 import BackMsg
from visitor import Visitor, visiting

from rlcorr.strips.packing import unpack

PULL = 3.0
"""Seconds that a thumb is held."""
PATIENCE = 60.0
"""Seconds: an answer that takes longer has been lost."""


async def opened(url: str, http: AsyncClient) -> Visitor:
    """Open a page with a slider."""
    visitor = await visiting(url, http, "bench", "preset=decoupled_token_is")
    assert visitor.slider, "the page has no live part"
    return visitor


async def strip_of(visitor: Visitor) -> float:
    """Return the seconds until the strip is there."""
    start = time.perf_counter()
    got = await visitor.http.get(f"{visitor.url}/{visitor.slider['strip']}")
    got.raise_for_status()
    assert unpack(got.content).about["numbers"]
    return time.perf_counter() - start


async def let_go(visitor: Visitor, value: float) -> float:
    """Seconds until the page has run."""
    message = BackMsg()
    rerun = message.rerun_script
    rerun.page_script_hash, rerun.query_string = visitor.page, visitor.query
    at = {"value": value, "generation": visitor.slider["generation"], "done": True}
    rerun.widget_states.widgets.add(id=visitor.live, json_value=json.dumps({"moved": {"live_is_upper": at}}))
    start = time.perf_counter()
    await visitor.ask(message)
    await visitor.run_ended()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Times:
    """Seconds until each strip was there, and of each run of the page."""

    strips: list[float]
    runs: list[float]


async def dragged(url: str, seconds: float, seed: int) -> Times:
    chance, times = random.Random(seed), Times([], [])
    async with AsyncClient(timeout=PATIENCE) as http:
        visitor = await opened(url, http)
        places = visitor.slider["values"]
        times.strips.append(await strip_of(visitor))
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            await asyncio.sleep(min(PULL, left))
            times.runs.append(await let_go(visitor, chance.choice(places)))
        await visitor.socket.close()
    return times


async def together(url: str, sessions: int, seconds: float) -> Times:
    drags = await asyncio.gather(*(dragged(url, seconds, seed) for seed in range(sessions)))
    return Times([t for of in drags for t in of.strips], [t for of in drags for t in of.runs])
